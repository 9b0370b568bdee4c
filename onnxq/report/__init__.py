"""What was found of a model, to be looked at: one document as JSON, and the same as a page that needs no network.

    document.py     what a report holds; its JSON Schema is docs/report.schema.json
    gather.py       a report of what a command found, or of models as they lie on disk
    folders.py      one of each model of a folder
    nodes.py, weights.py, activations.py, operators.py, reasons.py
                    a part of it each
    figures.py      the plots
    page.py         the page, from templates/

The page is made by jinja2 and plotly, the extra `report`.
"""
