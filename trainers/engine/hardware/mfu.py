"""How well a run uses its hardware: model FLOPs utilisation and memory."""

import re
import resource
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.config.architecture import Model, generator_of
from trainers.config.job import Job
from trainers.models import MODELS

# Dense peak of one accelerator in TFLOP/s, (bf16, fp32), from NVIDIA's data sheets, without sparsity. fp32 is
# without TF32, which torch disables by default. The first pattern that the device's name contains is used.
PEAK_TFLOPS: tuple[tuple[str, float, float], ...] = (
    (r"\bGB200\b", 2500.0, 80.0),
    (r"\bB200\b", 2250.0, 75.0),
    (r"\bH200\b(?! NVL)", 989.4, 66.9),
    (r"\bH100 PCIe\b", 756.0, 51.2),
    (r"\bH100 NVL\b", 835.0, 60.0),
    (r"\bH100\b", 989.4, 66.9),
    (r"\bA100\b", 312.0, 19.5),
    (r"\bA10\b", 125.0, 31.2),
    (r"\bL40S\b", 362.0, 91.6),
    (r"\bL4\b", 121.0, 30.3),
)


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of training, forward and backward, per token.

    `read` applies to each token that an encoder or a decoder-only model reads, `decoded` to each token that
    the decoder of an encoder-decoder reads, and `predicted` to each target.
    """

    read: float
    decoded: float
    predicted: float

    def of(self, read: float, decoded: float, predicted: float) -> float:
        """Return the number of operations for the given numbers of tokens read, decoded and predicted."""
        return float(self.terms(read, decoded, predicted).sum())

    def terms(self, read: float, decoded: float, predicted: float) -> np.ndarray:
        """Return the number of operations of each term (read, decoded, predicted) for these numbers of
        tokens, float64 [3].
        """
        return np.array([self.read * read, self.decoded * decoded, self.predicted * predicted])


def flops_of(model: Any, sizes: Model, sequence_length: int) -> Flops:
    """Return the training operations per token at one sequence length. Each token that a stack reads costs 6
    N + 12 L W T, and each target costs 6 per parameter of the output layer.

    N is the number of parameters that take part in multiplications, without tables that are only looked up
    (position and token embeddings). L is the number of layers, W the total width of the heads of a layer, and
    T the sequence length (Chowdhery et al., 2022, appendix B). The second term is for attention; a recurrent
    model has none. By convention, attention counts in full, although a causal mask or isolated documents need
    only a part of it. The cross-attention of a decoder counts as much as its self-attention. A decoder-only
    model predicts every token that it reads, so its `read` and `predicted` add up to the published formula.

    Additional rules for special architectures:

    - A generator also reads every token, and its output layer predicts the targets.
    - A parameter that layers of a stack share counts once for each of them; a layer that runs twice counts twice.
    - Disentangled attention also multiplies queries and keys with a table of distances, k in each direction: 24 W k for
      each token and layer. The projections of this table are not counted.
    - A second stream of states adds its multiplications for each target.
    - The head of span boundaries counts for each target, and so does a second use of the output layer. The output layer
      also counts twice for a second direction or a second sentence decoder.
    - Layers over characters (CANINE, ELMo) count as often as they run for a token (`repeats` of the architecture). The
      attention between characters is given by `attended` of the architecture.
    - The decoder of characters and its output layer count for each predicted character. Attention between characters in
      this decoder is not counted.
    """
    import torch

    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    head = model.get_output_embeddings().weight

    def multiplied(*parts: Any) -> int:
        own = {id(parameter): parameter for part in parts for parameter in part.parameters()}
        return sum(own[name].numel() for name in own.keys() - tables if own[name] is not head)

    def repeated(network: Any) -> int:
        blocks = MODELS[sizes.architecture].blocks(network)
        return sum(map(multiplied, blocks)) - multiplied(*blocks)

    def attended(network: Any, its: Model) -> int:
        if its.traits.recurrent:
            return 0
        width = (its.head_width or its.width // its.heads) * its.heads
        if (scale := MODELS[sizes.architecture].attended) is not None:
            return int(12 * width * scale(network, sequence_length))
        each = 12 * width * sequence_length + 24 * width * (its.position_buckets or 0)
        return each * len(MODELS[sizes.architecture].blocks(network))

    predicted, aside = 6.0 * head.numel(), multiplied(*([model.boundary_head] if sizes.boundary_head else []))
    if aside:
        predicted += predicted + 6.0 * aside
    if sizes.character_buckets is not None:  # of a decoder that runs at the targets only
        aside = multiplied(model.decoder)
        predicted += 6.0 * model.decoder.multiplied
    if sizes.traits.bidirectional_lm or sizes.traits.decodes_neighbours:
        predicted *= 2
    if sizes.family != "encoder_decoder":
        networks = [(model, sizes)]
        if sizes.generator_size is not None:
            networks.append((model.generator, generator_of(sizes)))
        each = sum(6.0 * repeated(network) + attended(network, its) for network, its in networks)
        if (repeats := MODELS[sizes.architecture].repeats) is not None:
            each += 6.0 * repeats(model)
        if (queried := MODELS[sizes.architecture].queried) is not None:
            predicted += 6.0 * queried(model) + attended(model, sizes)
        return Flops(6.0 * (multiplied(model) - aside) + each, 0.0, predicted)
    width = (sizes.head_width or sizes.width // sizes.heads) * sizes.heads
    attention = 12 * width * sequence_length
    decoder = 6.0 * multiplied(model.get_decoder()) + 2 * attention * (sizes.decoder_layers or sizes.layers)
    return Flops(6.0 * multiplied(model.get_encoder()) + attention * sizes.layers, decoder, predicted)


def mean_keys(length: int, bptt: int | None) -> int:
    """Return the mean number of keys that a token attends to, in rows of `length` tokens: all keys of its row
    or, with windows of `bptt` tokens, the keys of its window and of the previous one.
    """
    return length if bptt is None else round(bptt * (2 - bptt / length))


def peak_flops(device: str, config: Job) -> float | None:
    """Return the peak FLOP/s of one worker: `execution.peak_tflops` if it is set, otherwise the value for
    `device` and the job's precision in PEAK_TFLOPS. Return None if the table lacks the device.
    """
    if config.execution.peak_tflops is not None:
        return config.execution.peak_tflops * 1e12
    for pattern, bf16, fp32 in PEAK_TFLOPS:
        if re.search(pattern, device):
            return 1e12 * (bf16 if config.precision == "bf16" else fp32)
    return None


def utilisation(flops_per_second: float, peak: float | None, workers: int) -> float | None:
    """Return the model FLOPs utilisation: `flops_per_second`, the FLOP/s of all workers together, divided by
    `workers` x `peak`. `peak` is the peak FLOP/s of one worker; if it is None (unknown), return None.
    """
    return None if peak is None else flops_per_second / (workers * peak)


def device_name() -> str:
    """Return the name of this worker's accelerator, or `cpu`."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def memory_bytes() -> int:
    """Return this worker's peak memory in bytes: with a GPU, the most allocated on it since the previous
    call; without one, the largest resident size since the process started.
    """
    import torch

    if torch.cuda.is_available():
        most = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return int(most)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
