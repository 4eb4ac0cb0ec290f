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
VOCABULARY, POSITIONS, SEGMENTS = 30_522, 512, 2
EPSILON = 1e-12
FUSED = "com.microsoft"
"""The operators of onnxruntime that do a whole part of a transformer."""


class Graph:
    """Nodes and weights, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers = [
            helper.make_tensor("as_rows", TensorProto.INT64, [2], [-1, WIDTH]),
            helper.make_tensor("as_batch", TensorProto.INT64, [3], [1, -1, WIDTH]),
        ]

    def weight(self, name: str, *shape: int) -> str:
        """Add a weight that is given when the graph is opened."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights")
        self.initializers.append(tensor)
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def dense(self, rows: str, name: str, output: str, size: int, of: int) -> str:
        """Add a layer ``rows · weightᵀ + bias``."""
        weights = [self.weight(f"{name}.weight", size, of), self.weight(f"{name}.bias", size)]
        return self.node("Gemm", [rows, *weights], output, transB=1)

    def rows(self, batch: str) -> str:
        """See a batch of one text, (1, n, 384), as the rows of its tokens, (n, 384)."""
        return self.node("Reshape", [batch, "as_rows"], f"{batch}_rows")

    def batch(self, rows: str) -> str:
        """See the rows of tokens, (n, 384), as a batch of one text, (1, n, 384)."""
        return self.node("Reshape", [rows, "as_batch"], f"{rows}_batch")

    def add_and_normalise(self, rows: str, skipped: str, name: str, output: str) -> str:
        """Add what skipped a layer to its output, and normalise the sum."""
        scale = [self.weight(f"{name}.weight", WIDTH), self.weight(f"{name}.bias", WIDTH)]
        total = self.node("Add", [self.batch(rows), skipped], f"{output}_sum")
        return self.node("LayerNormalization", [total, *scale], output, axis=-1, epsilon=EPSILON)


def build() -> bytes:
    """Return the graph."""
    graph = Graph()
    embedding = [
        graph.weight("embeddings.word_embeddings.weight", VOCABULARY, WIDTH),
        graph.weight("embeddings.position_embeddings.weight", POSITIONS, WIDTH),
        graph.weight("embeddings.token_type_embeddings.weight", SEGMENTS, WIDTH),
        graph.weight("embeddings.LayerNorm.weight", WIDTH),
        graph.weight("embeddings.LayerNorm.bias", WIDTH),
    ]
    graph.nodes.append(
        helper.make_node(
            "EmbedLayerNormalization",
            ["ids", "segments", *embedding],
            ["text_0", "unused"],
            domain=FUSED,
            epsilon=EPSILON,
        )
    )
    text = "text_0"
    for number in range(LAYERS):
        text = _layer(graph, f"encoder.layer.{number}", text, f"text_{number + 1}")
    mean = graph.node("ReduceMean", [graph.rows(text)], "mean", axes=[0], keepdims=1)
    graph.node("LpNormalization", [mean], "vector", axis=1, p=2)
    whole = helper.make_graph(
        graph.nodes,
        "minilm",
        [
            helper.make_tensor_value_info(name, TensorProto.INT32, [1, "tokens"])
            for name in ("ids", "segments")
        ],
        [helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, WIDTH])],
        graph.initializers,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    model = helper.make_model(whole, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def _layer(graph: Graph, name: str, text: str, output: str) -> str:
    rows = graph.rows(text)
    query, key, value = (
        graph.batch(
            graph.dense(rows, f"{name}.attention.self.{part}", f"{name}.{part}", WIDTH, WIDTH)
        )
        for part in ("query", "key", "value")
    )
    attended = graph.node(
        "MultiHeadAttention", [query, key, value], f"{name}.attended", domain=FUSED, num_heads=HEADS
    )
    own = f"{name}.attention.output"
    mixed = graph.dense(graph.rows(attended), f"{own}.dense", f"{name}.mixed", WIDTH, WIDTH)
    between = graph.add_and_normalise(mixed, text, f"{own}.LayerNorm", f"{name}.between")
    inner = graph.dense(
        graph.rows(between), f"{name}.intermediate.dense", f"{name}.inner", INNER, WIDTH
    )
    active = graph.node("Gelu", [inner], f"{name}.active", domain=FUSED)
    outer = graph.dense(active, f"{name}.output.dense", f"{name}.outer", WIDTH, INNER)
    return graph.add_and_normalise(outer, between, f"{name}.output.LayerNorm", output)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build())
