"""The networks of `throughput.py` in PyTorch."""

from typing import Any, Callable, Dict

from .throughput import LEARNING_RATE


def mlp(torch: Any, model: Dict[str, Any]) -> Any:
    nn, width = torch.nn, model["width"]
    hidden = [layer for _ in range(model["layers"]) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*(hidden + [nn.Linear(width, model["classes"])]))


def resnet(torch: Any, model: Dict[str, Any]) -> Any:
    """ResNet-50 for images of 3 channels."""
    nn, width = torch.nn, model["width"]
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, blocks in enumerate(model["blocks"]):
        for block in range(blocks):
            inner, stride = width * 2**stage, 2 if stage and not block else 1
            layers.append(bottleneck(torch, channels, inner, stride))
            channels = 4 * inner
    return nn.Sequential(*(layers + [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, model["classes"])]))


def bottleneck(torch: Any, channels: int, inner: int, stride: int) -> Any:
    nn = torch.nn

    class Bottleneck(nn.Module):  # type: ignore[misc,name-defined]
        """Three convolutions beside a short cut."""

        def __init__(self) -> None:
            super().__init__()
            self.main = nn.Sequential(
                *convolution(nn, channels, inner, 1, 1) + [nn.ReLU()],
                *convolution(nn, inner, inner, 3, stride) + [nn.ReLU()],
                *convolution(nn, inner, 4 * inner, 1, 1),
            )
            same = channels == 4 * inner
            self.short = nn.Identity() if same else nn.Sequential(*convolution(nn, channels, 4 * inner, 1, stride))

        def forward(self, images: Any) -> Any:
            return torch.relu(self.main(images) + self.short(images))

    return Bottleneck()


def convolution(nn: Any, channels: int, filters: int, kernel: int, stride: int) -> Any:
    return [nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(filters)]


def network(torch: Any, model: Dict[str, Any], device: str) -> Any:
    return (resnet if "image" in model else mlp)(torch, model).to(device)


def training_step(torch: Any, net: Any, optimizer: Any, model: Dict[str, Any], device: str) -> Callable[[], None]:
    """One step on data that stay where they are; it returns when the device has done it."""
    image = model.get("image")
    shape = (3, image, image) if image else (model["width"],)
    samples = torch.randn((model["batch"],) + shape, device=device)
    labels = torch.randint(model["classes"], (model["batch"],), device=device)
    loss = torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(net(samples), labels).backward()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()

    return step


def sgd(torch: Any, net: Any) -> Any:
    return torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
