"""Methods of fine-tuning. To add one, put a file into one of these folders and add its class to the union
`Method`:

- `weights`: methods that train parameters of the base, the task's head alone, or new parameters that modify
  the base's weights;
- `inserted`: methods that add layers;
- `virtual`: methods that add tokens, or keys and values of attention, that are not part of the text.
"""

from typing import get_args

from trainers.adapters.inserted.bottleneck_adapter import BottleneckAdapter
from trainers.adapters.virtual.deep_prompts import DeepPrompts
from trainers.adapters.virtual.multitask_prompt import MultitaskPrompt
from trainers.adapters.virtual.p_tuning import PTuning
from trainers.adapters.virtual.prefix_tuning import PrefixTuning
from trainers.adapters.virtual.prompt_tuning import PromptTuning
from trainers.adapters.weights.adalora import AdaLoRA
from trainers.adapters.weights.bitfit import BitFit
from trainers.adapters.weights.feature_extraction import FeatureExtraction
from trainers.adapters.weights.full import Full
from trainers.adapters.weights.head_only import HeadOnly
from trainers.adapters.weights.ia3 import IA3
from trainers.adapters.weights.loha import LoHa
from trainers.adapters.weights.lokr import LoKr
from trainers.adapters.weights.lora import LoRA

Method = (
    AdaLoRA
    | BitFit
    | BottleneckAdapter
    | DeepPrompts
    | FeatureExtraction
    | Full
    | HeadOnly
    | IA3
    | LoHa
    | LoKr
    | LoRA
    | MultitaskPrompt
    | PrefixTuning
    | PromptTuning
    | PTuning
)
METHODS: dict[str, type[Method]] = {method.kind: method for method in get_args(Method)}
