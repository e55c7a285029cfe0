"""Every key of a run: meaning, unit and range stand under the field.

Defaults are the vetted ones; files in `configs/` state what differs. An upper bound is far above what a run can want: beyond
it a value is a slip of the keyboard. Models are frozen and refuse unknown keys. What a single field cannot express (two keys
that contradict each other) is in `consistency.py`.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from grpo_core.config.names import check_data_source, check_reward
from grpo_core.config.rules import EvaluationConfig, MonitorConfig, ProbeConfig, TrackingConfig
from grpo_core.config.section import (
    LARGEST_INT,
    MOST_ROWS,
    MOST_STEPS,
    MOST_TOKENS,
    Column,
    PlainValues,
    Section,
    Source,
    Steps,
    Text,
)
from grpo_core.config.steering import BetaControl, SyncWhen


def _check_dropout(value: float) -> float:
    if value != 0:
        raise PydanticCustomError(
            "dropout",
            "{fault}",
            {"fault": "input should be 0: with dropout, the policy that is trained is not the one that made the rollouts"},
        )
    return value


class LoraConfig(Section):
    """Train a low-rank adapter instead of the weights: W + (alpha / rank) B A (Hu et al., arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1, le=4096)
    """Columns of B and rows of A, at most the smaller side of every matrix that is adapted."""
    alpha: float | None = Field(default=None, gt=0, le=1e6)
    """The adapter is scaled by alpha / rank; null = 2 x rank, a scale of 2 whatever the rank."""
    dropout: Annotated[float, Field(ge=0, lt=1), AfterValidator(_check_dropout)] = 0.0
    """Has to be 0, for the policy that is trained to be the one that made the rollouts."""
    target_modules: tuple[Text, ...] | None = Field(default=None, min_length=1, max_length=1000)
    """Linear layers that get an adapter, by their names or the ends of them, such as `[q_proj, v_proj]`; null = every one but
    the vocabulary head. Of a model that reads images they are those of its text part."""
    init_from: Source | None = None
    """Folder of a PEFT adapter to begin with: it is the initial policy then; null = begin with the model itself."""
    reference_rank: int | None = Field(default=None, ge=1, le=65_536)
    """Largest rank of a reference that is an average of adapters (`reference.mixup_alpha` below 1); beyond it the smallest
    singular values are dropped, and the error is journalled. null = 4 x rank."""

    @property
    def scale(self) -> float:
        """Factor on B A."""
        return 2.0 if self.alpha is None else self.alpha / self.rank

    @property
    def most_rank(self) -> int:
        """Largest rank of an averaged reference."""
        return self.reference_rank or 4 * self.rank


class ModelConfig(Section):
    """Which policy is trained."""

    source: Source = "bundled:smollm2-135m"
    """`bundled:<name>` or `scratch:<name>` (no download), a folder in transformers' format, or a hub id such as `org/name`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type of policy and reference alike; what is trained and the optimizer's state are float32 either way."""
    trust_remote_code: bool = False
    """Run Python code that comes with a hub model. Off: a model that needs it fails to load."""
    lora: LoraConfig | None = None
    """An adapter is trained, and the model's own weights stay as they are; null = all weights are trained."""
    freeze: tuple[Literal["vision"], ...] = Field(default=(), max_length=1)
    """Parts whose weights stay as they are: `vision`, the tower of a model that reads images and what joins it to the text."""


class DataConfig(Section):
    """Where prompts come from and what is frozen."""

    source: Annotated[Source, AfterValidator(check_data_source)] = "reasoning_gym:chain_sum"
    """`reasoning_gym:<task>`, `shapes:<box|count|colour>`, `file:<path>` (.jsonl, .parquet, .csv), or `hub:<dataset>`."""
    hub_config: Text | None = None
    """Configuration name of a hub data set (GSM8K: `main`)."""
    hub_split: Text = "train"
    """Split of a hub data set from which prompts are taken."""
    task_args: PlainValues = Field(default={})
    """Arguments of a reasoning-gym task, such as its difficulty."""
    size: int | None = Field(default=None, ge=2, le=MOST_ROWS)
    """Rows taken, train and eval together; null = all of them (reasoning-gym: 2,000)."""
    seed: int = Field(default=0, ge=0, le=LARGEST_INT)
    """Seed of procedural tasks and of the train/eval split; independent of `training.seed`, so that arms share their data."""
    prompt_column: Column = "question"
    """Column that holds the prompt: text, or a list of chat messages."""
    answer_column: Column | None = "answer"
    """Column that holds the gold answer, or a path into one (`reward_model.ground_truth`); passed to rewards as `answer`.
    Text, a number, true or false; null = there is none."""
    image_column: Column | None = None
    """Column that holds a prompt's image, or a list of them; null = `images`, else `image`, where the model reads images."""
    max_image_pixels: int = Field(default=1_000_000, ge=1, le=100_000_000)
    """Images of more pixels are made smaller, to the same proportions, and counted."""
    answer_after: Column | None = None
    """Only what follows the last occurrence of this marker in the answer column is the gold answer (GSM8K: `####`)."""
    system_prompt: str | None = Field(default=None, max_length=1_000_000)
    """System message put before a text prompt; null = whatever the chat template does by itself."""
    examples: tuple[tuple[str, str], ...] = Field(default=(), max_length=1000)
    """(question, answer) pairs shown as earlier turns of the conversation."""
    chat_template: bool = True
    """Apply the tokenizer's chat template; off = the prompt is used as plain text. On, reward functions get prompts and
    completions as lists of chat messages, as in TRL."""
    eval_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of the distinct prompts held out for evaluation, never trained on."""


class RewardConfig(Section):
    """One reward function."""

    fn: Annotated[Text, AfterValidator(check_reward)]
    """A built-in name (`box_format`, `box_iou`, `exact_answer`, `format`, `length`, `math_answer`, `reasoning_gym`,
    `vlm_r1_accuracy`, `vlm_r1_length`) or `package.module:function`, which gets each completion as text, or with
    `data.chat_template: true` as a list of messages: `completion[0]["content"]` is its text, as in TRL."""
    weight: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Factor in the weighted sum."""
    args: PlainValues = Field(default={})
    """Keyword arguments given to the function at every call."""
    dry_run: bool = True
    """Call the function before a run starts, in a process of its own, on the first eight rows with their gold answers and with
    wrong ones as completions; off: for a function whose call costs money, or takes more than 30 s."""
    cpu_seconds: float | None = Field(default=None, gt=0, le=1e6)
    """Bound in CPU time. Of `math_answer`, `reasoning_gym`, `format` and `vlm_r1_*`: for each completion, which scores 0
    beyond it; null = 1. Of a function of yours: for each call with the whole batch, beyond which the run stops; null = 600.
    Ten times as much by the clock stops the run, too."""


class VllmConfig(Section):
    """The vLLM that makes the rollouts with `rollout.engine: vllm`."""

    mode: Literal["server", "colocate"] = "server"
    """`server`: processes of its own. `colocate`: in the training process; `training.python` names an interpreter with it."""
    url: Source | None = None
    """Address of a server on this machine that is up (its key: GRPO_VLLM_KEY); null = the run or its sweep starts one."""
    python: Text | None = None
    """Interpreter of the environment with vLLM, of a server that the run starts; null = GRPO_VLLM_PYTHON, else `.venv-vllm`."""
    in_flight: int = Field(default=64, ge=1, le=4096)
    """Completions at a time."""
    kv_cache_gib: int = Field(default=2, ge=1, le=16_384)
    """Memory of its key-value cache."""
    sleep: bool = False
    """With `mode: colocate` on a GPU: between rollouts vLLM's memory is the trainer's."""


class RolloutConfig(Section):
    """How completions are sampled."""

    engine: Literal["embedded", "vllm"] = "embedded"
    """`embedded`: the trainer's own model. `vllm`: a copy of it in vLLM, which is given the weights before every step."""
    vllm: VllmConfig = VllmConfig()

    num_prompts_per_step: int = Field(default=8, ge=1, le=1_000_000)
    """P: prompts of one step."""
    group_size: int = Field(default=8, ge=1, le=65_536)
    """G: completions of one prompt."""
    max_prompt_tokens: int = Field(default=512, ge=1, le=MOST_TOKENS)
    """Longer prompts are dropped and counted."""
    max_completion_tokens: int = Field(default=256, ge=1, le=MOST_TOKENS)
    """Completions are truncated at this many tokens."""
    temperature: float = Field(default=1.0, ge=1e-3, le=100)
    """Logits are divided by it; every log-probability is of this scaled policy."""
    top_p: float = Field(default=1.0, ge=1e-6, le=1)
    """Nucleus mass; 1 = off. Other values bias every KL estimate."""
    top_k: int | None = Field(default=None, ge=1, le=10_000_000)
    """Only the k most likely tokens; null = off. Other values bias every KL estimate."""


class AdvantageConfig(Section):
    """From rewards to advantages: shape the rewards, compare them, shape the advantages, in this order (ROLL's)."""

    reward_norm: Literal["none", "group", "batch"] = "none"
    """Normalise rewards before they are compared; see `reward_shift` and `reward_scale`."""
    reward_shift: bool = True
    """With `reward_norm`: subtract the mean."""
    reward_scale: bool = True
    """With `reward_norm`: divide by the standard deviation."""
    reward_clip: float | None = Field(default=None, gt=0, le=1e9)
    """Rewards are clamped to [-reward_clip, reward_clip], after the normalisation; null = not at all."""

    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    """Subtracted from each reward."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """Divides the difference; standard deviations are Bessel-corrected."""
    advantage_eps: float = Field(default=1e-4, gt=0, le=1e6)
    """Added to the standard deviation."""
    whiten_advantages: bool = False
    """Normalise advantages once more, over the loss tokens of the step, so that long completions weigh more."""
    advantage_clip: float | None = Field(default=None, gt=0, le=1e9)
    """Advantages are clamped to [-advantage_clip, advantage_clip], last; null = not at all."""


class FilterConfig(Section):
    """Which completions the loss leaves out; shares are journalled, and group statistics keep all rewards."""

    drop_zero_variance_groups: bool = False
    """Groups whose rewards are all equal leave the loss and its denominators, with them their KL term."""
    mask_truncated_completions: bool = False
    """Completions that were cut at `max_completion_tokens` leave the loss and its denominators (DAPO)."""
    overlong_buffer_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Soft overlong penalty (DAPO): within so many tokens of the limit the reward falls linearly, by 1 at the limit."""


class LossConfig(Section):
    """The objective of one step."""

    beta: float = Field(default=0.04, ge=0, le=1e6)
    """Weight of the KL term. 0 = no KL in the loss; every KL is measured all the same."""
    beta_control: BetaControl | None = None
    """Steer beta by the drift, from `beta` on; null = it stays."""
    kl_estimator: Literal["k3", "k1", "k2", "full"] = "k3"
    """What enters the loss: an estimator, or the exact KL over the vocabulary; k1, k2, k3 are measured whatever it is."""
    kl_placement: Literal["loss", "reward"] = "loss"
    """`reward`: k1 of each token is subtracted from the advantages as return-to-go, after their normalisation."""
    kl_correction: Literal["none", "importance"] = "importance"
    """`importance`: a sampled token's KL in the loss is weighted by its ratio: the gradient of k1 and k3 is then the KL's."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio of the surrogate: of each token, or of the completion (GSPO)."""
    clip_eps: float | None = Field(default=0.2, gt=0, lt=1)
    """Ratios are clipped to [1 - clip_eps, 1 + clip_eps]; null = no clipping."""
    clip_eps_high: float | None = Field(default=None, gt=0, le=1e9)
    """Upper bound 1 + clip_eps_high instead (DAPO's clip-higher); null = clip_eps."""
    dual_clip: float | None = Field(default=None, gt=1, le=1e9)
    """Where the advantage is negative, ratios above this add nothing; above 1 + clip_eps_high (ROLL: 1 + 2 clip_eps)."""
    sampler_correction: Literal["none", "truncate", "mask"] | None = None
    """Weights between the sampler's and the trainer's probabilities: none, truncated at `sampler_bound`, or 0 above it; null =
    truncate in bfloat16 with vLLM, else none."""
    sampler_level: Literal["token", "sequence"] = "token"
    """One such weight for each token, or one for a completion."""
    sampler_bound: float = Field(default=2.0, ge=1, le=1e9)
    """Bound of the sampler correction."""
    aggregation: Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = (
        "seq-mean-token-mean"
    )
    """How token losses become one number; see `grpo_core/algorithm/loss.py`."""
    epochs_per_rollout: int = Field(default=1, ge=1, le=10_000)
    """mu: passes over one step's rollouts."""
    minibatches: int = Field(default=1, ge=1, le=1_000_000)
    """Optimizer steps in one pass."""

    @property
    def upper_clip(self) -> float | None:
        """1 + `clip_eps_high`, else 1 + `clip_eps`; None without clipping."""
        if self.clip_eps is None:
            return None
        return 1 + (self.clip_eps if self.clip_eps_high is None else self.clip_eps_high)


class ReferenceConfig(Section):
    """The reference policy of the KL term."""

    sync_steps: Steps | None = None
    """The reference is synchronised after every so many steps; null = not by schedule."""
    sync_when: SyncWhen | None = None
    """It is synchronised, too, after a step whose drift from it is above a bound; null = not by drift."""
    mixup_alpha: float = Field(default=1.0, gt=0, le=1)
    """ref <- alpha * policy + (1 - alpha) * ref, in float32; 1 = hard copy."""
    kl_init_every: Steps = 1
    """After the first sync, the drift from the initial policy is measured every so many steps (an extra forward pass)."""
    kl_full_every: Steps | None = 50
    """Every so many steps a step's drift is the exact sum over the vocabulary (2 more passes, after a sync 4), else k1."""
    distance_every: Steps = 1
    """||theta - theta_ref|| is measured every so many steps, and before every sync (it reads all weights of both)."""
    offload: bool = False
    """On a GPU, reference and initial policy wait in host memory and are copied over for their passes."""


Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW and its learning-rate schedule."""

    lr: float = Field(default=1e-6, ge=0, le=100)
    """Peak learning rate; 0 = the policy stays as it is: a control, which shows the noise of every figure."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up; linear and cosine end at 0 after the last step."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Optimizer steps over which the rate rises linearly to `lr`."""
    weight_decay: float = Field(default=0.0, ge=0, le=1000)
    """Decoupled weight decay."""
    adam_betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    max_grad_norm: float | None = Field(default=1.0, gt=0, le=1e9)
    """Gradients are scaled down to this L2 norm; null = never."""


class TrainingConfig(Section):
    """The training process."""

    engine: Literal["native", "trl"] = "native"
    """`native`: this project's loop. `trl`: the same run on TRL's GRPOTrainer; what TRL cannot do is refused by name."""
    steps: Steps = 100
    """Steps; one step is one batch of rollouts and the updates on it."""
    max_tokens: int | None = Field(default=None, ge=1, le=10**15)
    """The run ends, finished, after the step by which so many completion tokens have been sampled, if that is before the last
    of `steps`; null = no such bound. Arms of different group size then have the same tokens, give or take one step."""
    seed: int = Field(default=0, ge=0, le=LARGEST_INT)
    """Seed of prompt order and sampling."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where tensors live; auto = cuda where there is one."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """CPU threads, which decide floating-point results; null = as many as the process may use. Recorded."""
    deterministic: bool = True
    """Only deterministic kernels, so that a run repeats bit for bit: on the same hardware, with the same number of threads and
    the same torch. An operation of the trainer's passes without one ends the run by name (while sampling, and in TRL's engine,
    it warns in train.log); vLLM's sampling does not repeat. Off: cuDNN and cuBLAS may choose faster kernels on a GPU."""
    processes: int = Field(default=1, ge=1, le=4096)
    """Processes that share out the work of each step, those of all nodes together; on GPUs, one each. The same completions,
    with as many or as few; other roundings in the last digits. A resume may change it."""
    shards: int | None = Field(default=None, ge=1, le=4096)
    """Over how many processes the weights are spread, a divisor of `processes`; null = over all, with `model.lora` over none;
    1 = each process has all of them. A resume may change it."""
    collective_seconds: int = Field(default=1800, ge=1, le=10**6)
    """After so long without an answer from one of several processes, the run ends: at least as long as its longest rollout."""
    microbatch_tokens: int = Field(default=16384, ge=1, le=1_000_000_000)
    """Tokens (padding included) of one forward and backward pass of one process; changes memory and speed, not the result."""
    rollout_rows: int = Field(default=256, ge=1, le=1_000_000)
    """Completions that one process samples at once; bounds the sampler's key-value cache."""
    gradient_checkpointing: bool = False
    """Whether an update keeps each layer's input alone for the backward pass, which computes the layer again: the same
    result up to rounding, far less memory, and a third more work. Layers of full attention only."""
    packed_weights: bool = True
    """Whether large matrices are packed for sampling, on a CPU with AVX: up to twice as fast, with other roundings in the last
    digits. The journal's `start` record says whether they are."""
    checkpoint_every: Steps | None = 20
    """A checkpoint after every so many steps: what a killed run repeats at most; null = only at the end."""
    keep_checkpoints: int = Field(default=2, ge=1, le=MOST_STEPS)
    """How many of the newest checkpoints are kept; that of the best policy (`evaluation.every_steps`) is kept as well."""
    keep_at: tuple[Steps, ...] = Field(default=(), max_length=1000)
    """Steps after which there is a checkpoint that stays, for forks that begin there."""
    max_skipped_updates: int = Field(default=3, ge=1, le=MOST_STEPS)
    """An update whose loss or gradient is not finite is not applied; after so many in a row the run is stopped."""
    completions_every: Steps = 1
    """The completions table is written every so many steps, of the first step, and of the last one before each end."""
    noise_scale_every: Steps | None = None
    """Every so many steps the gradient noise scale is measured, in passes of their own that cost about another update; null =
    never. Needs two prompts a step and `loss.minibatches: 1`."""
    python: Text | None = None
    """Interpreter of the training process (an environment of its own); null = the one that started it."""


class RunConfig(Section):
    """One training run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rewards: tuple[RewardConfig, ...] = Field(default=(RewardConfig(fn="reasoning_gym"),), min_length=1, max_length=100)
    """Reward functions; the total is their weighted sum."""
    rollout: RolloutConfig = RolloutConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    filtering: FilterConfig = FilterConfig()
    loss: LossConfig = LossConfig()
    reference: ReferenceConfig = ReferenceConfig()
    probe: ProbeConfig = ProbeConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    monitor: MonitorConfig = MonitorConfig()
    tracking: TrackingConfig = TrackingConfig()
