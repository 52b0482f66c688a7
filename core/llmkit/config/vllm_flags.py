"""What becomes of ``vllm serve`` flags (0.32, and older ones still in scripts) here: one table."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

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
    guess = nearest(plain, [*own, *_by_name()])
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


def _rows(status: Status, text: str, switches: str = "", values: str = "") -> Iterator[VllmFlag]:
    """Flags that share a reason; names of one flag are joined by ``/``."""
    for group, takes_value in ((switches, False), (values, True)):
        for names in group.split():
            yield VllmFlag(tuple(names.split("/")), status, text, takes_value)


def _same() -> Iterator[VllmFlag]:
    yield from _rows(
        "same",
        "",
        switches="--trust-remote-code --enable-prefix-caching --enable-log-requests",
        values="--model --tokenizer --revision --seed --max-num-seqs --num-gpu-blocks-override "
        "--tensor-parallel-size/-tp --host --port --uds --root-path "
        "--generation-config --chat-template --config",
    )
    yield from _rows(
        "same", "several: repeat the flag, or one after another behind MODEL", values="--served-model-name"
    )
    yield from _rows("same", "several as above; plugin routes need one too", values="--api-key")
    yield from _rows("same", "none by default; vLLM allows every origin", values="--allowed-origins")
    yield from _rows("same", "also `half` and `float`; `auto` is float32 on a CPU", values="--dtype")
    yield from _rows("same", "also 16k, 16K, `auto` and -1 (the largest that fits)", values="--max-model-len")
    yield from _rows("same", "also 8k, 8K", values="--max-num-batched-tokens")
    yield from _rows("same", "8, 16, 32, 64 or 128", values="--block-size")
    yield from _rows("same", "4GiB, 4G (both binary), 4GB or bytes", values="--kv-cache-memory-bytes")
    yield from _rows("same", "what the attention backend knows", values="--kv-cache-dtype")
    yield from _rows("same", "one JSON object; no dotted form", values="--hf-overrides")
    yield from _rows("same", "a registered loader: safetensors, gguf, dummy", values="--load-format")
    yield from _rows("same", "a registered model implementation", values="--model-impl")
    yield from _rows("same", "a registered tokenizer", values="--tokenizer-mode")
    yield from _rows("same", "a registered linear method", values="--quantization")
    yield from _rows("same", "a registered policy", values="--scheduling-policy")
    yield from _rows("same", "seconds; 30 by default", values="--shutdown-timeout")
    yield from _rows(
        "same", "or --executor; `mp` is multiproc, `uni` is uniproc", values="--distributed-executor-backend"
    )
    yield from _rows(
        "same", "or --attn; CPU_ATTN is paged-cpu, TORCH_SDPA is reference", values="--attention-backend"
    )
    yield from _rows("same", "off by default", switches="--async-scheduling")
    yield from _rows(
        "same",
        "also `auto`, the default, and `none`",
        values="--tool-call-parser --reasoning-parser",
    )
    yield from _rows("same", "also `raw_logprobs` and `processed_logprobs`", values="--logprobs-mode")
    yield from _rows(
        "same", "how many draft tokens; --speculator says whose", values="--num-speculative-tokens"
    )
    yield from _rows(
        "same",
        "methods ngram and draft_model, with model, num_speculative_tokens, prompt_lookup_min and "
        "prompt_lookup_max; or --speculator and the flags beside it",
        values="--speculative-config/-sc",
    )


def _renamed() -> Iterator[VllmFlag]:
    yield from _rows("renamed", "--quantization", values="-q")
    yield from _rows("renamed", "--log-level", values="--uvicorn-log-level")
    yield from _rows("renamed", "--grammar-backend", values="--guided-decoding-backend")
    yield from _rows("renamed", "--speculator", values="--spec-method")
    yield from _rows("renamed", "--draft-model", values="--spec-model --speculative-model")
    yield from _rows("renamed", "--num-speculative-tokens", values="--spec-tokens")


def _no_effect() -> Iterator[VllmFlag]:
    yield from _rows(
        "no effect",
        "it is about speed only, and nothing is captured or compiled ahead here",
        switches="--enforce-eager --enable-flashinfer-autotune",
        values="--compilation-config/-cc -O --optimization-level --performance-mode "
        "--cudagraph-capture-sizes --cuda-graph-sizes --max-cudagraph-capture-size --max-seq-len-to-capture",
    )
    yield from _rows("no effect", "this version computes on the CPU", values="--gpu-memory-utilization")
    yield from _rows(
        "no effect",
        "it is about speed only",
        switches="--disable-async-output-proc --disable-custom-all-reduce "
        "--disable-cascade-attn --use-tqdm-on-load --disable-nccl-for-dp-synchronization "
        "--scheduler-reserve-full-isl",
        values="--max-parallel-loading-workers --stream-interval --safetensors-load-strategy "
        "--num-lookahead-slots --num-scheduler-steps --renderer-num-workers",
    )
    yield from _rows(
        "no effect",
        "calls are parsed wherever their format is known",
        switches="--enable-auto-tool-choice",
    )
    yield from _rows(
        "no effect",
        "tools are never shown under tool_choice none",
        switches="--exclude-tools-when-tool-choice-none",
    )
    yield from _rows(
        "no effect",
        "long prompts are always computed in chunks of --max-num-batched-tokens",
        switches="--enable-chunked-prefill",
        values="--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold",
    )
    yield from _rows(
        "no effect", "a preempted request is computed again", values="--swap-space --preemption-mode"
    )
    yield from _rows("no effect", "prefix-cache keys are always BLAKE3", values="--prefix-caching-hash-algo")
    yield from _rows(
        "no effect",
        "layers of different kinds always have groups of their own",
        switches="--disable-hybrid-kv-cache-manager",
    )
    yield from _rows("no effect", "usage always says", switches="--enable-prompt-tokens-details")
    yield from _rows("no effect", "X-Request-Id is always sent", switches="--enable-request-id-headers")
    yield from _rows(
        "no effect", "accesses are logged at --log-level debug only", switches="--disable-uvicorn-access-log"
    )
    yield from _rows("no effect", "requests are not logged by default", switches="--disable-log-requests")
    yield from _rows("no effect", "statistics are at /metrics", switches="--disable-log-stats")
    yield from _rows(
        "no effect",
        "HTTP is parsed by httptools",
        values="--h11-max-incomplete-event-size --h11-max-header-count",
    )


def _not_yet() -> Iterator[VllmFlag]:
    status: Status = "not supported yet"
    yield from _rows(
        status,
        "raise --max-num-batched-tokens to compute prompts whole",
        switches="--no-enable-chunked-prefill",
    )
    yield from _rows(
        status,
        "--plugin loads a plugin that has the parser",
        values="--tool-parser-plugin --reasoning-parser-plugin",
    )
    yield from _rows(status, "clients run the tools", values="--tool-server")
    yield from _rows(
        status,
        "a request's chat_template_kwargs say whether to reason",
        values="--reasoning-config",
    )
    yield from _rows(
        status,
        "write --grammar-backend for its backend",
        values="--structured-outputs-config",
    )
    yield from _rows(
        status,
        "one request, one model: no adapters",
        switches="--enable-lora --fully-sharded-loras --enable-tower-connector-lora",
        values="--lora-modules --max-loras --max-lora-rank --max-cpu-loras --lora-dtype "
        "--lora-target-modules --lora-extra-vocab-size --default-mm-loras",
    )
    yield from _rows(
        status,
        "only --tensor-parallel-size splits a model",
        switches="--enable-expert-parallel/-ep --enable-eplb --enable-dbo --data-parallel-hybrid-lb/-dph "
        "--data-parallel-external-lb/-dpe --headless",
        values="--pipeline-parallel-size/-pp --data-parallel-size/-dp --data-parallel-rank/-dpn "
        "--data-parallel-start-rank/-dpr --data-parallel-size-local/-dpl --data-parallel-address/-dpa "
        "--data-parallel-rpc-port/-dpp --data-parallel-backend/-dpb --decode-context-parallel-size/-dcp "
        "--prefill-context-parallel-size/-pcp --all2all-backend --eplb-config --expert-placement-strategy "
        "--dbo-decode-token-threshold --dbo-prefill-token-threshold --nnodes/-n --node-rank/-r --master-addr "
        "--master-port --api-server-count/-asc",
    )
    yield from _rows(
        status,
        "one kind of worker; name an executor plugin with --executor",
        switches="--ray-workers-use-nsight --disable-frontend-multiprocessing",
        values="--worker-cls --worker-extension-cls --distributed-timeout-seconds",
    )
    yield from _rows(status, "name a scheduler plugin with --scheduler", values="--scheduler-cls")
    yield from _rows(status, "use --plugin-option NAME.key=value", values="--additional-config")
    yield from _rows(
        status,
        "a plugin offers them (register_logits_processors); --plugin enables it",
        values="--logits-processors --logits-processor-pattern",
    )
    yield from _rows(
        status,
        "use --kv-connector offload --kv-offload-bytes 16GiB",
        values="--kv-offloading-size --kv-offloading-backend",
    )
    yield from _rows(
        status,
        "KV stays in the memory of its worker",
        switches="--calculate-kv-scales --kv-sharing-fast-prefill --enable-sleep-mode",
        values="--kv-transfer-config --kv-events-config "
        "--cpu-offload-gb --cpu-offload-params --offload-backend --ec-transfer-config",
    )
    yield from _rows(
        status,
        "text in, text out",
        switches="--enable-mm-embeds --enable-prompt-embeds --interleave-mm-strings --skip-mm-profiling "
        "--disable-chunked-mm-input --language-model-only --disable-mm-preprocessor-cache",
        values="--limit-mm-per-prompt --media-io-kwargs --mm-processor-kwargs --mm-processor-cache-gb "
        "--mm-processor-cache-type --mm-shm-cache-max-object-size-mb --mm-encoder-tp-mode "
        "--mm-encoder-attn-backend --video-pruning-rate --allowed-local-media-path --allowed-media-domains",
    )
    yield from _rows(
        status,
        "the model generates; it neither embeds nor classifies",
        values="--runner --convert --task --pooler-config --override-pooler-config --io-processor-plugin",
    )
    yield from _rows(
        status,
        "state-space layers are not served",
        values="--mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size --mamba-cache-mode",
    )
    yield from _rows(
        status,
        "put a TLS proxy in front",
        switches="--enable-ssl-refresh",
        values="--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --ssl-ciphers",
    )
    yield from _rows(
        status,
        "the HTTP server has no setting for it; a plugin's register_routes may serve more",
        switches="--allow-credentials --disable-fastapi-docs --grpc "
        "--enable-server-load-tracking --enable-tokenizer-info-endpoint --enable-offline-docs --tokens-only",
        values="--allowed-methods --allowed-headers --middleware --fingerprint-mode --fingerprint-value",
    )
    yield from _rows(
        status,
        "the API has no setting for it",
        switches="--return-tokens-as-token-ids --enable-force-include-usage "
        "--enable-per-request-metrics --trust-request-chat-template",
        values="--response-role --chat-template-content-format --default-chat-template-kwargs "
        "--override-generation-config --max-logprobs",
    )
    yield from _rows(
        status,
        "logs have one switch, --log-level, and --enable-log-requests",
        switches="--enable-log-outputs --enable-log-deltas --log-error-stack --aggregate-engine-logging",
        values="--log-config-file --max-log-len --disable-access-log-for-endpoints",
    )
    yield from _rows(
        status,
        "metrics are those of /metrics",
        switches="--kv-cache-metrics --cudagraph-metrics --enable-mfu-metrics "
        "--enable-layerwise-nvtx-tracing",
        values="--otlp-traces-endpoint --collect-detailed-traces --show-hidden-metrics-for-version "
        "--profiler-config --kv-cache-metrics-sample",
    )
    yield from _rows(status, "set HF_HOME", values="--download-dir")
    yield from _rows(status, "set HF_TOKEN", values="--hf-token")
    yield from _rows(status, "use --hf-overrides", values="--rope-scaling --rope-theta --hf-config-path")
    yield from _rows(
        status,
        "",
        switches="--skip-tokenizer-init --disable-sliding-window --enable-multimodal-encoder-data-parallel",
        values="--tokenizer-revision --code-revision --config-format --ignore-patterns "
        "--pt-load-map-location --model-loader-extra-config --attention-config --kernel-config "
        "--moe-backend --linear-backend --model-class-overrides",
    )


_TABLE: tuple[VllmFlag, ...] = (*_same(), *_renamed(), *_no_effect(), *_not_yet())
