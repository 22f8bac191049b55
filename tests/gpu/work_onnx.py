# SPDX-License-Identifier: BSD-2-Clause
"""ONNX Runtime on the GPU: a product and an activation, a few times, with the inputs on the
host."""
import sys

import numpy as np
import onnx
import onnxruntime

if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
    print("ONNX Runtime has no GPU")
    sys.exit(77)
kind = onnx.TensorProto.FLOAT
graph = onnx.helper.make_graph(
    [onnx.helper.make_node("MatMul", ["x", "w"], ["y"]), onnx.helper.make_node("Relu", ["y"],
                                                                               ["z"])],
    "work", [onnx.helper.make_tensor_value_info("x", kind, [64, 64])],
    [onnx.helper.make_tensor_value_info("z", kind, [64, 64])],
    [onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")])
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
session = onnxruntime.InferenceSession(model.SerializeToString(),
                                       providers=["CUDAExecutionProvider"])
for i in range(20):
    session.run(None, {"x": np.full((64, 64), i, np.float32)})
