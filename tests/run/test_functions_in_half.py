"""Operators without a float16 kernel are computed by the functions that ONNX has for them: are those for float16?"""

from __future__ import annotations

import contextlib

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tiny
from onnx import TensorProto, defs, helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from operator_cases import CASES, Case

from onnxq.model import graph
from onnxq.passes.normalize.unique_names import UniqueNames
from onnxq.passes.quantize.convert_to_half import ConvertToHalf
from onnxq.plan import Choice, Method, Plan
from onnxq.runtime import known

#: Types of inputs that are no floats.
OTHERS = {"tensor(int64)": TensorProto.INT64, "tensor(bool)": TensorProto.BOOL, "tensor(float)": TensorProto.FLOAT}
HALF = "tensor(float16)"


def with_functions() -> dict[str, tuple[defs.OpSchema, int]]:
    """Every version of every operator whose function has a body for an opset, by words that say which."""
    found = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated and schema.has_function:
            for opset in schema.function_opset_versions:
                if known.takes_half(ir.node(schema.name, []), max(opset, schema.since_version)):
                    found[f"{schema.name}-{schema.since_version}-{opset}"] = schema, opset
    return found


def in_half(schema: defs.OpSchema, opset: int) -> onnx.ModelProto:
    """The operator's function as one of the model's own, called with float16 wherever that is a type of its input."""
    function = onnx.FunctionProto()
    function.ParseFromString(schema.get_function_with_opset_version(opset))
    function.domain, version = "own", max(opset, schema.since_version)
    if not any(each.domain == "" for each in function.opset_import):
        function.opset_import.append(helper.make_opsetid("", version))
    types = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}

    def info(name: str, formal: defs.OpSchema.FormalParameter) -> onnx.ValueInfoProto:
        allowed = types.get(formal.type_str, [formal.type_str])
        kind = TensorProto.FLOAT16 if HALF in allowed else next(OTHERS[each] for each in OTHERS if each in allowed)
        return helper.make_tensor_value_info(name, kind, None)

    inputs = [info(f"i{i}", each) for i, each in enumerate(schema.inputs)]
    outputs = [info(f"o{i}", each) for i, each in enumerate(schema.outputs)]
    node = helper.make_node(schema.name, [v.name for v in inputs], [v.name for v in outputs], domain="own")
    for name in function.attribute:
        default = schema.attributes[name].default_value
        if name == "output_datatype":
            node.attribute.append(helper.make_attribute(name, TensorProto.FLOAT16))
        elif default.name:
            node.attribute.append(default)
    body = helper.make_graph([node], "g", inputs, outputs)
    imports = [helper.make_opsetid("", version), helper.make_opsetid("own", 1)]
    return helper.make_model(body, functions=[function], opset_imports=imports, ir_version=10)


FUNCTIONS = with_functions()


@pytest.mark.parametrize("word", FUNCTIONS)
def test_functions_are_of_one_type(word: str) -> None:
    model = in_half(*FUNCTIONS[word])
    with contextlib.suppress(NoKernel):  # functions of operators that are newer than this onnxruntime
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_one_that_is_not_is_known() -> None:
    """Else nothing above says anything."""
    schema = defs.get_schema("MeanVarianceNormalization", 13)
    with pytest.raises(Exception, match="inconsistent type"):
        ort.InferenceSession(in_half(schema, 13).SerializeToString(), providers=["CPUExecutionProvider"])


#: Cases whose output says a wrong shape, which onnxruntime minds once a Cast stands behind it.
WRONG_SHAPE = {"Transpose"}


@pytest.mark.parametrize(
    "case", [each for name, each in CASES.items() if name not in WRONG_SHAPE], ids=lambda c: c.nodes
)
def test_operators_run_in_half(case: Case) -> None:
    made = tiny.read(case.proto())
    UniqueNames()(made)
    plan = Plan("fp16", "onnx", {"any": Choice("any", "MatMul", Method.HALF)})
    ConvertToHalf(plan, {node.name or "" for node in graph.nodes(made)})(made)
    wanted, got = (
        ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": case.feed()}
        )
        for proto in (case.proto(), ir.to_proto(made))
    )
    assert tiny.sqnr(wanted[0], got[0]) > 40 or wanted[0].dtype.kind != "f"
