"""Writes the computation of MiniLM-L6 as an ONNX graph without its weights.

``PYTHONPATH=tools python -m minilm.build retrieval/encoders/minilm.onnx``, with ``onnx`` installed.
The weights are named as in the file that the model's makers publish, and are given to the graph
when it is opened. It takes one text: the ids of its tokens, and returns its unit vector, the mean
over the tokens (Reimers & Gurevych 2019; Wang et al. 2020 for the model).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from onnx import NodeProto, TensorProto, helper

LAYERS, HEADS, WIDTH, INNER = 6, 12, 384, 1536
EMBEDDINGS = ("word_embeddings", 30_522), ("position_embeddings", 512), ("token_type_embeddings", 2)
EPSILON = 1e-12
FUSED, EMBED = "com.microsoft", "EmbedLayerNormalization"
"""The operators of onnxruntime that do a whole part of a transformer."""


class Graph:
    """Nodes and weights, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights = [
            helper.make_tensor("as_rows", TensorProto.INT64, [2], [-1, WIDTH]),
            helper.make_tensor("as_batch", TensorProto.INT64, [3], [1, -1, WIDTH]),
        ]

    def weight(self, name: str, *shape: int) -> str:
        """Add a weight that is given when the graph is opened."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights")
        self.weights.append(tensor)
        return name

    def scale(self, name: str, *shape: int) -> list[str]:
        """Add the weight and the bias of a layer."""
        return [self.weight(f"{name}.weight", *shape), self.weight(f"{name}.bias", shape[0])]

    def node(self, kind: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        """Add a node, and return the name of its first output."""
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def see(self, text: str, form: str) -> str:
        """See a batch of one text, (1, n, 384), as the rows of its tokens, (n, 384), or back."""
        return self.node("Reshape", [text, f"as_{form}"], f"{text}_{form}")

    def dense(self, rows: str, name: str, output: str, size: int = WIDTH, of: int = WIDTH) -> str:
        """Add a layer ``rows · weightᵀ + bias``."""
        return self.node("Gemm", [rows, *self.scale(name, size, of)], output, transB=1)

    def add_and_normalise(self, rows: str, skipped: str, name: str, output: str) -> str:
        """Add what skipped a layer to its output, and normalise the sum."""
        scale = self.scale(name, WIDTH)
        total = [self.node("Add", [self.see(rows, "batch"), skipped], f"{output}_sum"), *scale]
        return self.node("LayerNormalization", total, output, axis=-1, epsilon=EPSILON)

    def layer(self, name: str, text: str, output: str) -> str:
        """Add one layer of the transformer: attention, then two dense ones."""
        rows, own, inner = self.see(text, "rows"), f"{name}.attention.output", f"{name}.inner"
        parts = [
            self.see(self.dense(rows, f"{name}.attention.self.{part}", f"{name}.{part}"), "batch")
            for part in ("query", "key", "value")
        ]
        out = self.node(
            "MultiHeadAttention", parts, f"{name}.attended", domain=FUSED, num_heads=HEADS
        )
        mixed = self.dense(self.see(out, "rows"), f"{own}.dense", f"{name}.mixed")
        between = self.add_and_normalise(mixed, text, f"{own}.LayerNorm", f"{name}.between")
        self.dense(self.see(between, "rows"), f"{name}.intermediate.dense", inner, INNER)
        active = self.node("Gelu", [inner], f"{name}.active", domain=FUSED)
        outer = self.dense(active, f"{name}.output.dense", f"{name}.outer", of=INNER)
        return self.add_and_normalise(outer, between, f"{name}.output.LayerNorm", output)


def build() -> bytes:
    """Return the graph."""
    graph = Graph()
    tables = [graph.weight(f"embeddings.{name}.weight", size, WIDTH) for name, size in EMBEDDINGS]
    given = ["ids", "segments", *tables, *graph.scale("embeddings.LayerNorm", WIDTH)]
    text = graph.node(EMBED, given, "text_0", "unused", domain=FUSED, epsilon=EPSILON)
    for number in range(LAYERS):
        text = graph.layer(f"encoder.layer.{number}", text, f"text_{number + 1}")
    mean = graph.node("ReduceMean", [graph.see(text, "rows")], "mean", axes=[0], keepdims=1)
    graph.node("LpNormalization", [mean], "vector", axis=1, p=2)
    value, int32 = helper.make_tensor_value_info, TensorProto.INT32
    inputs = [value(name, int32, [1, "tokens"]) for name in ("ids", "segments")]
    vector = value("vector", TensorProto.FLOAT, [1, WIDTH])
    whole = helper.make_graph(graph.nodes, "minilm", inputs, [vector], graph.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    model = helper.make_model(whole, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build())
