"""The README of a bundle: what it is, what was measured, and the lines that load it, in several languages."""

from __future__ import annotations

import json

from onnxq.bundles.manifest import Manifest
from onnxq.errors import amount
from onnxq.runtime.machine import threads_in_words

README = "README.md"


def readme(manifest: Manifest, wrong_rules: str = "") -> str:
    """Markdown. The blocks of code are complete: paths are relative to the folder.

    Args:
        wrong_rules: of onnxruntime's optimizer, between semicolons, that are to be switched off.
    """
    blocks = [_TITLE.format(model=manifest.model, target=manifest.target, version=manifest.onnxq)]
    blocks += [_measured(manifest), _interface(manifest)]
    if manifest.library is not None:
        blocks.append(_LIBRARY.format(library=manifest.library, platform=manifest.platform))
    if wrong_rules:
        blocks.append(_WRONG_RULES)
    blocks += [f"## {name}\n\n```{word}\n{_lines(word, manifest, wrong_rules)}```" for name, word in _LANGUAGES]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


_TITLE = """
# {model}

A model for {target}, exported by onnxq {version}.

```sh
sha256sum --check SHA256SUMS  # all files are as they were made
python run.py                 # runs the stored samples: needs onnxruntime and numpy
onnxq verify .                # measures again what was measured, and compares
```
"""
_LIBRARY = """
The model has operators of onnxq's own. `{library}` computes them on {platform}; it is registered with the session.
Where it is not, each runs as the function that the model carries for it: nearly the same numbers, slower.
"""
_WRONG_RULES = """
The model rounds to float8. onnxruntime 1.32 takes that for rounding to integers and drops a Relu in front of it, so the
lines below switch off the rules of its optimizer that do so, by a setting that is called the same in all languages.
"""
#: Headings, and what a Markdown block calls the language.
_LANGUAGES = (("Python", "python"), ("C++", "cpp"), ("C#", "csharp"), ("Java", "java"), ("JavaScript", "js"))
_SETTING = "optimization.disable_specified_optimizers"
#: How a block begins, switches rules off, registers the library, and opens the model.
_CODE = {
    "python": (
        "import onnxruntime\n\noptions = onnxruntime.SessionOptions()\n",
        "options.add_session_config_entry({setting}, {rules})\n",
        "options.register_custom_ops_library({library})\n",
        'session = onnxruntime.InferenceSession({model}, options, providers=["CPUExecutionProvider"])\n',
    ),
    "cpp": (
        "#include <onnxruntime_cxx_api.h>\n\nOrt::Env env;\nOrt::SessionOptions options;\n",
        "options.AddConfigEntry({setting}, {rules});\n",
        "options.RegisterCustomOpsLibrary(ORT_TSTR({library}));\n",
        "Ort::Session session(env, ORT_TSTR({model}), options);\n",
    ),
    "csharp": (
        "using Microsoft.ML.OnnxRuntime;\n\nusing var options = new SessionOptions();\n",
        "options.AddSessionConfigEntry({setting}, {rules});\n",
        "options.RegisterCustomOpLibrary({library});\n",
        "using var session = new InferenceSession({model}, options);\n",
    ),
    "java": (
        "import ai.onnxruntime.OrtEnvironment;\nimport ai.onnxruntime.OrtSession;\n\n"
        "OrtSession.SessionOptions options = new OrtSession.SessionOptions();\n",
        "options.addConfigEntry({setting}, {rules});\n",
        "options.registerCustomOpLibrary({library});\n",
        "OrtSession session = OrtEnvironment.getEnvironment().createSession({model}, options);\n",
    ),
    "js": (
        'import ort from "onnxruntime-node";\n\nconst options = {{}};\n',
        "options.extra = {{ optimization: {{ disable_specified_optimizers: {rules} }} }};\n",
        "// onnxruntime-node takes no libraries: onnxq's operators run as the functions that the model carries.\n",
        "const session = await ort.InferenceSession.create({model}, options);\n",
    ),
}
_WEB = """
// In a browser, or for WebAssembly in node: import "onnxruntime-web", and hand it the data, which it does not find:
// ort.InferenceSession.create({model}, {{ ...options, externalData: {data} }})
"""


def _lines(word: str, manifest: Manifest, wrong_rules: str) -> str:
    begin, switch, register, end = _CODE[word]
    names = {"model": json.dumps(manifest.model), "library": json.dumps(f"./{manifest.library}")}
    names |= {"setting": json.dumps(_SETTING), "rules": json.dumps(wrong_rules)}
    said = [begin, *[switch] * bool(wrong_rules), *[register] * (manifest.library is not None), end]
    text = "".join(said).format(**names)
    if word == "js" and manifest.data:
        places = json.dumps([{"path": name, "data": f"/{name}"} for name in manifest.data])
        text += _WEB.format(model=names["model"], data=places).lstrip("\n")
    return text


def _interface(manifest: Manifest) -> str:
    rows = [f"| {_name(value.name)} | {value.type} | {_shape(value.shape)} |" for value in manifest.inputs]
    return "\n".join(["| input | type | shape |", "|---|---|---|", *rows])


def _shape(shape: list[int | str | None] | None) -> str:
    if shape is None:
        return "any"
    return " × ".join("?" if dim is None else _cell(str(dim)) for dim in shape) or "one number"


def _cell(text: str) -> str:
    """Words of a stranger's model in a table: they end neither cell nor line, and are no markup."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return "".join(f"&#{ord(c)};" if c in "|<>&`*_[]()!\\#~" else c for c in plain)


def _name(text: str) -> str:
    """A name as code; HTML, because in a Markdown table no other spelling holds every character."""
    return f"<code>{_cell(text)}</code>" if _cell(text) != text else f"`{text}`"


_MADE_UP = "made up: they show that it runs, not how good it is"


def _measured(manifest: Manifest) -> str:
    found = manifest.measured
    if found is None:
        return "Nothing was measured when it was exported."
    kernels = ", ".join(f"{count} {_cell(op)}" for op, count in found.kernels.items()) or "none"
    machine = found.machine
    rows = [
        ("machine", f"{_cell(machine.cpu)}, {amount(machine.cores, 'core')}, onnxruntime {machine.onnxruntime}"),
        ("one run", f"{found.milliseconds:.3f} ms on {threads_in_words(found.threads)}"),
        ("integer kernels", kernels),
        ("samples", _cell(found.on) if found.proves else f"{_cell(found.on)} ({_MADE_UP})"),
    ]
    if found.sqnr is not None:
        rows.append(("error against float", f"{found.sqnr:.1f} dB SQNR"))
    return "\n".join(["| measured | |", "|---|---|", *(f"| {word} | {text} |" for word, text in rows)])
