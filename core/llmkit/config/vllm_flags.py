"""What becomes of ``vllm serve`` flags (0.32, and older ones still in scripts) here: one table."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from llmkit.config.flags import flags
from llmkit.text import nearest

Status = Literal["same", "renamed", "no effect", "not supported yet", "unknown"]


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One row: a flag of vLLM's and what happens to it."""

    names: tuple[str, ...]
    status: Status
    text: str = ""
    """``same``: how values differ. ``renamed``: the flag here. Else the reason, or what to do instead."""
    takes_value: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a flag that the command does not have."""

    status: Status
    message: str
    """One line for the user."""
    takes_value: bool
    """Whether the next word belongs to it."""
    replacement: str = ""
    """``renamed``: the flag to use."""


def classify(name: str) -> Verdict:
    """Judge one flag (``--name`` without its value)."""
    plain = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
    base, dot, _ = plain.partition(".")
    row = _by_name().get(base)
    if row is None and base.startswith("-O") and base[2:].isdigit():
        row = VllmFlag((base,), "no effect", _by_name()["-O"].text, takes_value=False)
    if row is None and plain.startswith("--no-"):
        row = _negated("--" + plain.removeprefix("--no-"), plain)
    if row is not None and row.status in ("no effect", "not supported yet"):
        reason = f": {row.text}" if row.text else ""
        said = "has no effect here" if row.status == "no effect" else "is not supported yet"
        return Verdict(row.status, f"{name} {said}{reason}", row.takes_value)
    if row is not None and row.status == "renamed":
        return Verdict("renamed", f"{name} is {row.text} here", row.takes_value, row.text)
    own = {flag for option in flags() for flag in (*option.names, *option.negative_names)}
    if dot and base in own:
        return Verdict("not supported yet", f"{name} is not supported yet: give {base} one JSON object", True)
    if base in own:
        return Verdict("same", f"{base} is a flag of llmkit", True)
    taken = [known for known, row in _by_name().items() if row.status != "not supported yet"]
    guess = nearest(plain, [*own, *taken])
    return Verdict("unknown", f"unknown flag {name}" + (f"; did you mean {guess}?" if guess else ""), False)


def table() -> tuple[VllmFlag, ...]:
    """Every row, for docs/from-vllm.md."""
    return _TABLE


@functools.cache
def _by_name() -> dict[str, VllmFlag]:
    return {name: row for row in _TABLE for name in row.names}


def _negated(positive: str, name: str) -> VllmFlag | None:
    """``--no-x`` of a boolean that is ignored, or that is off here because it does not exist yet."""
    row = _by_name().get(positive)
    if row is None or row.takes_value or row.status not in ("no effect", "not supported yet"):
        return None
    reason = row.text if row.status == "no effect" else "it is off"
    return VllmFlag((name,), "no effect", reason, takes_value=False)


class _Group(NamedTuple):
    """Flags that share a status and a text; names of one flag are joined by ``/``."""

    text: str
    switches: str = ""
    values: str = ""


_SAME = (
    _Group(
        "",
        switches="--trust-remote-code --enable-prefix-caching --enable-log-requests --allow-credentials "
        "--trust-request-chat-template",
        values="--model --tokenizer --revision --seed --max-num-seqs --num-gpu-blocks-override "
        "--host --port --uds --root-path --ssl-certfile --ssl-keyfile --ssl-ca-certs --ssl-ciphers "
        "--allowed-methods --allowed-headers "
        "--generation-config --chat-template --chat-template-content-format --response-role --config",
    ),
    _Group("several: repeat the flag, or one after another behind MODEL", values="--served-model-name"),
    _Group("several as above; plugin routes need one too", values="--api-key"),
    _Group("none by default; vLLM allows every origin", values="--allowed-origins"),
    _Group("`none`, `optional` and `required`, or 0, 1 and 2", values="--ssl-cert-reqs"),
    _Group("20 by default; -1 is 1024", values="--max-logprobs"),
    _Group("also `half` and `float`; `auto` is float32 on a CPU", values="--dtype"),
    _Group("also 16k, 16K, `auto` and -1 (the largest that fits)", values="--max-model-len"),
    _Group("also 8k, 8K", values="--max-num-batched-tokens"),
    _Group("8, 16, 32, 64 or 128", values="--block-size"),
    _Group("4GiB, 4G (both binary), 4GB or bytes", values="--kv-cache-memory-bytes"),
    _Group("what the attention backend knows", values="--kv-cache-dtype"),
    _Group("one JSON object; no dotted form", values="--hf-overrides"),
    _Group("a registered loader: safetensors, gguf, dummy", values="--load-format"),
    _Group("a registered model implementation", values="--model-impl"),
    _Group("a registered tokenizer", values="--tokenizer-mode"),
    _Group("no draft", values="--runner"),
    _Group("pooling_type, normalize and dimensions", values="--pooler-config"),
    _Group("a registered linear method", values="--quantization"),
    _Group("a registered policy", values="--scheduling-policy"),
    _Group("seconds; 30 by default", values="--shutdown-timeout"),
    _Group("1; more need an executor plugin that runs several ranks", values="--tensor-parallel-size/-tp"),
    _Group(
        "or --executor; `uni` is uniproc, the one there is; others need an executor plugin",
        values="--distributed-executor-backend",
    ),
    _Group("or --attn; CPU_ATTN is paged-cpu, TORCH_SDPA is reference", values="--attention-backend"),
    _Group("off by default", switches="--async-scheduling"),
    _Group("also `auto`, the default, and `none`", values="--tool-call-parser --reasoning-parser"),
    _Group("also `raw_logprobs` and `processed_logprobs`", values="--logprobs-mode"),
    _Group("how many draft tokens; --speculator says whose", values="--num-speculative-tokens"),
    _Group(
        "methods ngram and draft_model, with model, num_speculative_tokens, prompt_lookup_min and "
        "prompt_lookup_max; or --speculator and the flags beside it",
        values="--speculative-config/-sc",
    ),
)

_RENAMED = (
    _Group("--quantization", values="-q"),
    _Group("--pooler-config", values="--override-pooler-config"),
    _Group("--log-level", values="--uvicorn-log-level"),
    _Group("--grammar-backend", values="--guided-decoding-backend"),
    _Group("--speculator", values="--spec-method"),
    _Group("--draft-model", values="--spec-model --speculative-model"),
    _Group("--num-speculative-tokens", values="--spec-tokens"),
)

_NO_EFFECT = (
    _Group(
        "it is about speed only, and nothing is captured or compiled ahead here",
        switches="--enforce-eager --enable-flashinfer-autotune",
        values="--compilation-config/-cc -O --optimization-level --performance-mode "
        "--cudagraph-capture-sizes --cuda-graph-sizes --max-cudagraph-capture-size --max-seq-len-to-capture",
    ),
    _Group(
        "this version computes on the CPU; --kv-cache-memory-bytes says how much the KV cache takes",
        values="--gpu-memory-utilization",
    ),
    _Group(
        "it is about speed only",
        switches="--disable-async-output-proc --disable-custom-all-reduce "
        "--disable-cascade-attn --use-tqdm-on-load --disable-nccl-for-dp-synchronization "
        "--scheduler-reserve-full-isl",
        values="--max-parallel-loading-workers --stream-interval --safetensors-load-strategy "
        "--num-lookahead-slots --num-scheduler-steps --renderer-num-workers",
    ),
    _Group("calls are parsed wherever their format is known", switches="--enable-auto-tool-choice"),
    _Group("tools are never shown under tool_choice none", switches="--exclude-tools-when-tool-choice-none"),
    _Group(
        "long prompts are always computed in chunks of --max-num-batched-tokens",
        switches="--enable-chunked-prefill",
        values="--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold",
    ),
    _Group("a preempted request is computed again", values="--swap-space --preemption-mode"),
    _Group("prefix-cache keys are always BLAKE3", values="--prefix-caching-hash-algo"),
    _Group(
        "layers of different kinds always have groups of their own",
        switches="--disable-hybrid-kv-cache-manager",
    ),
    _Group("usage always says", switches="--enable-prompt-tokens-details"),
    _Group("X-Request-Id is always sent", switches="--enable-request-id-headers"),
    _Group("accesses are logged with --access-log only", switches="--disable-uvicorn-access-log"),
    _Group("changed certificates are always read again", switches="--enable-ssl-refresh"),
    _Group("requests are not logged by default", switches="--disable-log-requests"),
    _Group("statistics are at /metrics", switches="--disable-log-stats"),
    _Group("every engine can sleep; --enable-admin-routes has the routes", switches="--enable-sleep-mode"),
    _Group("HTTP is parsed by httptools", values="--h11-max-incomplete-event-size --h11-max-header-count"),
)

_NOT_YET = (
    _Group("raise --max-num-batched-tokens to compute prompts whole", switches="--no-enable-chunked-prefill"),
    _Group(
        "--plugin loads a plugin that has the parser", values="--tool-parser-plugin --reasoning-parser-plugin"
    ),
    _Group("clients run the tools", values="--tool-server"),
    _Group("a request's chat_template_kwargs say whether to reason", values="--reasoning-config"),
    _Group("write --grammar-backend for its backend", values="--structured-outputs-config"),
    _Group(
        "one request, one model: no adapters",
        switches="--enable-lora --fully-sharded-loras --enable-tower-connector-lora",
        values="--lora-modules --max-loras --max-lora-rank --max-cpu-loras --lora-dtype "
        "--lora-target-modules --lora-extra-vocab-size --default-mm-loras",
    ),
    _Group(
        "one front and one engine serve a model; an executor plugin may split it (--tensor-parallel-size)",
        switches="--enable-expert-parallel/-ep --enable-eplb --enable-dbo --data-parallel-hybrid-lb/-dph "
        "--data-parallel-external-lb/-dpe --headless",
        values="--pipeline-parallel-size/-pp --data-parallel-size/-dp --data-parallel-rank/-dpn "
        "--data-parallel-start-rank/-dpr --data-parallel-size-local/-dpl --data-parallel-address/-dpa "
        "--data-parallel-rpc-port/-dpp --data-parallel-backend/-dpb --decode-context-parallel-size/-dcp "
        "--prefill-context-parallel-size/-pcp --all2all-backend --eplb-config --expert-placement-strategy "
        "--dbo-decode-token-threshold --dbo-prefill-token-threshold --nnodes/-n --node-rank/-r --master-addr "
        "--master-port --api-server-count/-asc",
    ),
    _Group(
        "one kind of worker; name an executor plugin with --executor",
        switches="--ray-workers-use-nsight --disable-frontend-multiprocessing",
        values="--worker-cls --worker-extension-cls --distributed-timeout-seconds",
    ),
    _Group("name a scheduler plugin with --scheduler", values="--scheduler-cls"),
    _Group("use --plugin-option NAME.key=value", values="--additional-config"),
    _Group(
        "a plugin offers them (register_logits_processors); --plugin enables it",
        values="--logits-processors --logits-processor-pattern",
    ),
    _Group(
        "use --kv-connector offload --kv-offload-bytes 16GiB",
        values="--kv-offloading-size --kv-offloading-backend",
    ),
    _Group("use --kv-connector: `offload` is built in, others are a plugin's", values="--kv-transfer-config"),
    _Group("nothing tells other servers of what is cached", values="--kv-events-config --ec-transfer-config"),
    _Group(
        "weights stay in the memory of their worker",
        values="--cpu-offload-gb --cpu-offload-params --offload-backend",
    ),
    _Group(
        "text in, text out",
        switches="--enable-mm-embeds --enable-prompt-embeds --interleave-mm-strings --skip-mm-profiling "
        "--disable-chunked-mm-input --language-model-only --disable-mm-preprocessor-cache",
        values="--limit-mm-per-prompt --media-io-kwargs --mm-processor-kwargs --mm-processor-cache-gb "
        "--mm-processor-cache-type --mm-shm-cache-max-object-size-mb --mm-encoder-tp-mode "
        "--mm-encoder-attn-backend --video-pruning-rate --allowed-local-media-path --allowed-media-domains",
    ),
    _Group(
        "--runner pooling embeds with any model, or classifies with the head it has",
        values="--convert --task --io-processor-plugin",
    ),
    _Group(
        "state-space layers are not served",
        values="--mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size --mamba-cache-mode",
    ),
    _Group(
        "the HTTP server has no setting for it; a plugin's register_routes may serve more",
        switches="--disable-fastapi-docs --grpc "
        "--enable-server-load-tracking --enable-tokenizer-info-endpoint --enable-offline-docs --tokens-only",
        values="--middleware --fingerprint-mode --fingerprint-value",
    ),
    _Group(
        "the API has no setting for it",
        switches="--return-tokens-as-token-ids --enable-force-include-usage --enable-per-request-metrics",
        values="--default-chat-template-kwargs --override-generation-config",
    ),
    _Group(
        "logs have one switch, --log-level, and --enable-log-requests",
        switches="--enable-log-outputs --enable-log-deltas --log-error-stack --aggregate-engine-logging",
        values="--log-config-file --max-log-len --disable-access-log-for-endpoints",
    ),
    _Group(
        "metrics are those of /metrics",
        switches="--kv-cache-metrics --cudagraph-metrics --enable-mfu-metrics "
        "--enable-layerwise-nvtx-tracing",
        values="--otlp-traces-endpoint --collect-detailed-traces --show-hidden-metrics-for-version "
        "--kv-cache-metrics-sample",
    ),
    _Group("use --profiler-dir DIR", values="--profiler-config"),
    _Group("set HF_HOME", values="--download-dir"),
    _Group("set HF_TOKEN", values="--hf-token"),
    _Group("use --hf-overrides", values="--rope-scaling --rope-theta --hf-config-path"),
    _Group(
        "",
        switches="--skip-tokenizer-init --disable-sliding-window --enable-multimodal-encoder-data-parallel "
        "--calculate-kv-scales --kv-sharing-fast-prefill",
        values="--tokenizer-revision --code-revision --config-format --ignore-patterns "
        "--pt-load-map-location --model-loader-extra-config --attention-config --kernel-config "
        "--moe-backend --linear-backend --model-class-overrides",
    ),
)


def _rows(status: Status, groups: Iterable[_Group]) -> Iterator[VllmFlag]:
    for group in groups:
        for flags_of_a_kind, takes_value in ((group.switches, False), (group.values, True)):
            for names in flags_of_a_kind.split():
                yield VllmFlag(tuple(names.split("/")), status, group.text, takes_value)


_TABLE: tuple[VllmFlag, ...] = (
    *_rows("same", _SAME),
    *_rows("renamed", _RENAMED),
    *_rows("no effect", _NO_EFFECT),
    *_rows("not supported yet", _NOT_YET),
)
