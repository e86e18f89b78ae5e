from __future__ import annotations

SMALL_OF = {
    "mlp": "mlp:inputs=16,width=32,layers=2,samples=64",
    "resnet50": "resnet50:samples=16,image=32",
    "transformer": (
        "transformer:vocab=64,d_model=16,feedforward=16,layers=2,sequence=8,samples=64"
    ),
    "lora": "lora:sequence=8,samples=32",
}
