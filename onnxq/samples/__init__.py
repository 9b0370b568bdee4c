"""Samples for a model, from files as people have them: texts, sounds, images and tables become the model's inputs.

`source.open_data` opens them all. A record is what a file says of one sample, and becomes a feed of the model:

    files.py    which files there are, and the records in them
    records.py  a record becomes a feed: who makes which input
    texts/      token ids, masks, positions; caches, by running the model; what lies beside the model
    sounds/     wave forms and spectrograms
    pictures/   images, as Hugging Face's preprocessor_config.json or the user says
    columns.py  CSV, Parquet, Arrow and `datasets` folders, in batches
    arrays.py   .npz and .npy                              fit.py        arrays against the model's inputs
    rows_in_files.py  large ones, sample by sample
    reading.py  what the user said of all this             trials.py     what two models are compared on
"""
