"""What made ``retrieval/encoders/minilm.onnx``."""
