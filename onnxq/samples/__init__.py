"""Samples for a model, from files as people have them: texts, sounds, images and tables become the model's inputs.

`data.open_data` is the door. One room for each kind of file, and one record for what a file says of one sample:

    files.py    which files there are, and the records in them
    records.py  a record becomes a feed: who makes which input
    text.py     token ids, masks and positions             tokenizer.py  ids from the `tokenizers` library
    decoding.py caches and states, by running the model    companions.py what lies beside the model
    sound.py    wave forms and spectrograms                spectrum.py   the mathematics of those
    pictures.py images, as bytes or files                  processor.py  Hugging Face's preprocessor_config.json
    columns.py  CSV, Parquet, Arrow and `datasets` folders, in batches
    reading.py  what the user said of all this             fit.py        arrays against the model's inputs
"""
