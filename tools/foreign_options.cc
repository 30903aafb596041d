#include "tools/foreign_options.h"

#include <algorithm>
#include <span>

namespace fastdecode {

namespace {

struct Foreign {
  std::string_view names;  // with spaces between them
  std::string_view answer;
};

// tests/tools/wrong_use_test.py asks the program for every name, and looks for every option that an answer names.
constexpr Foreign kOptions[] = {
    // --- Where it computes
    {"-ngl --gpu-layers --n-gpu-layers --num-gpu-layers --num-gpu",
     "a GPU computes all layers or none; give --spart cuda or --spart cpu"},
    {"-t --threads --n-threads --num-threads",
     "give --s-threads N for what has weights and --r-threads N for each home; all cores are used without"},
    {"-tb --threads-batch", "prompts are computed by the threads that compute answers; give --s-threads N"},
    {"-C --cpu-mask -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch --cpu-range-batch --cpuset",
     "give the cores in --s-cores LIST and --r-cores LIST"},
    {"--prio --prio-batch", "start the program with nice -n N"},
    {"--numa", "leave it out; nodes are found, and each has a home of its own (--homes local)"},
    {"-dev --device --device-id --device-map",
     "give --spart cuda or --spart cpu for what has weights, and --gpu N for which GPU"},
    {"-sm --split-mode -ts --tensor-split -mg --main-gpu",
     "one GPU computes what has weights; give --gpu N for which one"},
    {"--list-devices", "fastdecode doctor shows them"},
    {"-tp --tp --tp-size --tensor-parallel-size --num-shard --num-shards --sharded --tensor-parallel",
     "weights are not split; one GPU (--gpu N) or the CPU computes them, and KV may lie on other hosts (--homes)"},
    {"-pp --pp --pp-size --pipeline-parallel-size --pipeline-parallel",
     "layers are not split; one GPU (--gpu N) or the CPU computes them, and KV may lie on other hosts (--homes)"},
    {"-dp --dp --dp-size --data-parallel-size --data-parallel-size-local --data-parallel-address "
     "--data-parallel-backend --data-parallel-rank -dpl -dpa",
     "start one server for each GPU, with a --gpu N and a --port of its own"},
    {"-dcp --decode-context-parallel-size --prefill-context-parallel-size -pcp",
     "KV of different sequences lies at different homes; give them in --homes"},
    {"-ep --ep --ep-size --enable-expert-parallel --moe-backend --enable-eplb --expert-parallel-size",
     "leave it out; there are no models with experts"},
    {"--nnodes --node-rank --dist-init-addr --master-addr --master-port --distributed-executor-backend "
     "--distributed-timeout-seconds --rpc --headless",
     "start fastdecode worker --listen HOST:PORT on the other host, and give --homes HOST:PORT here"},
    {"--kv-transfer-config --disaggregation-mode --disaggregation-transfer-backend --ec-transfer-config",
     "KV lies where --homes says; there are no other roles"},
    {"-fa --flash-attn --flash-attention --attention-backend --attn-implementation --attn-impl --attention-config "
     "--prefill-attention-backend --decode-attention-backend --sampling-backend",
     "leave it out; there is one attention, which keeps no matrix of scores, and --isa names its instructions"},
    {"--enforce-eager --compilation-config -cc -O --optimization-level --cuda-graph-max-bs --disable-cuda-graph "
     "--cuda-graphs --enable-torch-compile --cudagraph-capture-sizes",
     "leave it out; nothing is compiled at start, and a GPU's steps are always graphs"},
    {"-nkvo --no-kv-offload --kv-offload -kvo --swap-space --cpu-offload-gb --kv-offloading-size --cpu-offload",
     "KV lies in the host's memory unless --homes gpu says otherwise; give --kv-gib GIB for each home"},
    {"-ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe", "weights lie where --spart computes"},
    {"--mlock", "leave it out; weights are copied at start into memory of their own"},
    {"--mmap --no-mmap -no-mmap --use-mmap -dio --direct-io",
     "leave it out; weights are copied from the files at start"},

    // --- How much
    {"--ctx --n-ctx --num-ctx --context-length --context-size --max-length --max-len --max-seq-len --max-seq-length "
     "--max-sequence-length --max-total-tokens --max-input-length --max-input-tokens --max-position-embeddings",
     "give --max-context N, the tokens of a sequence, prompt and answer together"},
    {"-b --batch-size -ub --ubatch-size --chunked-prefill-size --max-prefill-tokens --max-batch-prefill-tokens "
     "--max-num-batched-tokens --long-prefill-token-threshold --num-batch --max-num-partial-prefills",
     "give --prefill-chunk N, the tokens of prompts that share a step"},
    {"--enable-chunked-prefill --no-enable-chunked-prefill --disable-chunked-prefill",
     "leave it out; prompts are always computed in chunks (--prefill-chunk N)"},
    {"-np --parallel --n-parallel --num-parallel --max-running-requests --max-batch-size --max-batch-total-tokens "
     "--max-parallel-loading-workers --num-slots",
     "give --max-sequences N, the sequences that advance at once"},
    {"--max-concurrent-requests --max-num-queued-reqs --max-queue-size --max-waiting-tokens",
     "give --max-queue N, the requests that wait or run; serve has --max-queued-requests N, too"},
    {"--gpu-memory-utilization --mem-fraction-static --kv-cache-memory-bytes --kv-cache-memory --cuda-memory-fraction "
     "--num-gpu-blocks-override --max-cpu-memory --gpu-memory",
     "give --kv-gib GIB for each home, and --gpu-kv-gib GIB for a GPU that is one"},
    {"-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype --kv-cache-type --kv-dtype --cache-dtype",
     "give --kv-type TYPE for both, K and V: f32, bf16, fp16, int8 or int4"},
    {"--dtype --torch-dtype --compute-dtype --compute-type --precision",
     "give --compute TYPE: auto, bf16, fp16 (on a GPU) or f32"},
    {"--quantization --quantize --load-in-8bit --load-in-4bit --quantization-config --quantization-param-path",
     "there are no quantised weights; give --kv-type int8 or int4 for smaller KV"},
    {"--block-size --page-size --kv-block-size -kvu --kv-unified --swa-full -dt --defrag-thold -cram --cache-ram "
     "--hash-block-size",
     "leave it out; KV is paged, and the sequences of a home share its pages"},
    {"-cb --cont-batching --continuous-batching -nocb --no-cont-batching",
     "leave it out; batching is always continuous"},
    {"--keep --context-shift --no-context-shift", "an answer ends where the context is full (--max-context)"},
    {"--enable-prefix-caching --no-enable-prefix-caching --disable-radix-cache --radix-cache --cache-prompt "
     "--no-cache-prompt",
     "pages of prompts are kept for those that begin alike, unless --prefix-cache is off"},
    {"--prompt-cache --cache-reuse --slot-save-path --prefix-caching-hash-algo",
     "leave it out; pages of prompts are kept in memory (--prefix-cache), and nothing in files"},
    {"--speculative-config -md --model-draft --draft --draft-max --draft-min --draft-n --speculative-algorithm "
     "--speculative-model --speculative-draft-model-path --speculative-num-steps --num-speculative-tokens --speculate "
     "--assistant-model -cd --ctx-size-draft -ngld --gpu-layers-draft",
     "leave it out; there is no speculation"},
    {"--scheduling-policy --schedule-policy --schedule-conservativeness --num-scheduler-steps --async-scheduling "
     "--policy",
     "leave it out; requests are served in the order in which they come"},

    // --- The model
    {"--model-path --model-id --model-name --model-dir --model-name-or-path --checkpoint --ckpt --pretrained "
     "--pretrained-model-name-or-path --model-tag",
     "give -m DIR, a Hugging Face folder on this host"},
    {"-hf -hfr --hf --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo --offline --revision "
     "--code-revision --download-dir --huggingface-hub-cache --cache-dir --hf-config-path",
     "nothing is downloaded; fetch the model's folder (hf download) and give it with -m DIR"},
    {"--tokenizer --tokenizer-path --tokenizer-mode --tokenizer-revision --tokenizer-name --tokenizer-worker-num "
     "--skip-tokenizer-init --use-fast",
     "the tokenizer is the model folder's own; generate takes token ids, too (--prompt-ids)"},
    {"--load-format --model-loader-extra-config --safetensors-load-strategy --use-tqdm-on-load --weight-loader",
     "leave it out; weights are read from safetensors"},
    {"--trust-remote-code --remote-code --trust-request-chat-template",
     "leave it out; no code of a model is run, and no template comes from a request"},
    {"--lora --lora-scaled --lora-modules --lora-paths --lora-init-without-apply --enable-lora --max-loras "
     "--max-lora-rank --lora-path --control-vector --control-vector-scaled --adapter",
     "there are no adapters; merge them into the checkpoint"},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --rope-theta --rope-parameters --hf-overrides "
     "--override-kv --json-model-override-args --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow "
     "--yarn-beta-fast -gan --grp-attn-n -gaw --grp-attn-w",
     "the model is what its folder says; change rope_parameters or rope_scaling in config.json"},
    {"-mm --mmproj -mmu --mmproj-url --image --audio --limit-mm-per-prompt --mm-processor-kwargs "
     "--allowed-local-media-path",
     "there is text alone, no images or sounds"},
    {"--embedding --embeddings --pooling --pooler-config --task --runner --convert --is-embedding --rerank --reranking "
     "--embd-normalize",
     "there are no embeddings; models generate text"},
    {"--config --env-file", "there is no configuration file; give the options"},

    // --- Requests
    {"--predict --num-predict --max-new-tokens --num-tokens --max-completion-tokens --max-gen-toks --gen-len",
     "give -n N"},
    {"--min-new-tokens --min-length", "give --min-tokens N"},
    {"--repeat-penalty --penalty", "give --repetition-penalty X"},
    {"--repeat-last-n", "leave it out; --repetition-penalty counts all tokens of prompt and answer"},
    {"--do-sample --greedy --sample", "tokens are drawn unless --temp is 0"},
    {"--num-beams --num-beam-groups --length-penalty --early-stopping --use-beam-search --beam-width --best-of "
     "--diversity-penalty",
     "there are no beams; tokens are drawn (--temp, --top-k, --top-p, --min-p)"},
    {"--typical --typical-p --tfs --tfs-z --mirostat --mirostat-lr --mirostat-ent --mirostat-eta --mirostat-tau "
     "--xtc-probability --xtc-threshold --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n "
     "--dry-sequence-breaker --dynatemp-range --dynatemp-exp --top-nsigma --top-n-sigma --top-a --samplers "
     "--sampler-seq --sampling-seq --epsilon-cutoff --eta-cutoff --penalty-alpha",
     "there are --temp, --top-k, --top-p, --min-p, --repetition-penalty, --presence-penalty and --frequency-penalty"},
    {"--no-repeat-ngram-size --encoder-repetition-penalty", "give --repetition-penalty X or --frequency-penalty X"},
    {"--grammar --grammar-file -j --json-schema -jf --json-schema-file --guided-decoding-backend --grammar-backend "
     "--structured-outputs-config --guided-json --guided-regex --disable-grammar-support",
     "there are no grammars or schemas; answers are free text"},
    {"-l", "give --logit-bias ID:BIAS"},
    {"-r --reverse-prompt --stop-sequence --stop-sequences --stop-strings --stop-words --stop-word",
     "give --stop TEXT"},
    {"-e --escape --no-escape", "leave it out; texts are taken as they are, and bash makes a newline of $'\\n'"},
    {"-sp --special --skip-special-tokens --no-skip-special-tokens",
     "special tokens are left out of answers unless --show-special is given"},
    {"--parse-special --no-parse-special",
     "names of special tokens in prompts become these tokens unless --plain is given"},
    {"--add-bos --no-bos --add-special-tokens --no-add-special-tokens --add-bos-token --no-add-bos",
     "bos is put before prompts unless --no-special-tokens is given"},
    {"--num-return-sequences --num-sequences --n-samples --num-samples", "give --choices N; requests to serve have n"},
    {"--prompt-file --input-file --input --in-file -bf --binary-file --text-file",
     "give -f FILE for one prompt, or --prompts-file FILE for one a line"},
    {"-o --output --output-file --out-file", "results go to standard output: > FILE"},
    {"-i --interactive -if --interactive-first -cnv --conversation -no-cnv --no-conversation -st --single-turn "
     "--instruct -ins --chat-mode --multiline-input -mli --in-prefix --in-suffix --in-prefix-bos",
     "fastdecode chat takes turns, and fastdecode generate goes on from prompts"},
    {"--color -co --simple-io --no-display-prompt --display-prompt --verbose-prompt --wordwrap --nowordwrap",
     "--json has the answer's text without the prompt, and fastdecode chat shows no more than answers"},
    {"-sys --sys --system-prompt --system-prompt-file -sysf --system-file --system-message",
     "give --system TEXT to fastdecode chat"},
    {"--jinja --no-jinja", "leave it out; chat templates are always Jinja"},
    {"--chat-template-file --custom-chat-template --hf-chat-template-name", "give --chat-template FILE"},
    {"--chat-template-kwargs --default-chat-template-kwargs --reasoning-format --reasoning-budget --reasoning-parser "
     "--reasoning-config --enable-reasoning --reasoning-effort --think --hidethinking --reasoning",
     "leave it out; the model's template shows how it reasons, --no-reasoning of chat hides it, and requests to serve "
     "have chat_template_kwargs"},
    {"--chat-template-content-format --response-role", "leave it out; templates get contents as they want them"},
    {"--enable-auto-tool-choice --tool-call-parser --tool-parser --tool-parser-plugin --tool-server",
     "there are no calls of tools"},

    // --- What it says
    {"--perf --no-perf --timings --show-timings --latency-stats", "give --report for a table of times"},
    {"--warmup --no-warmup --skip-server-warmup --warmups", "leave it out; nothing is warmed up"},
    {"--log-disable --log-file --log-colors --log-prefix --log-timestamps -lv --verbosity --log-verbosity --log-level "
     "--uvicorn-log-level --log-level-http --disable-log-stats --enable-log-requests --no-enable-log-requests "
     "--disable-log-requests --log-requests --log-requests-level --max-log-len --enable-log-outputs "
     "--otlp-traces-endpoint",
     "-q says less on standard error and -v more; what is asked and answered is never logged"},
    {"--disable-uvicorn-access-log --disable-access-log", "give --access-log none to serve"},

    // --- The server
    {"-a --alias", "give --served-model-name NAME to serve"},
    {"--listen --bind --listen-host --hostname --http-port --server-port --addr",
     "serve listens at --host HOST and --port N, and a worker at --listen ENDPOINT"},
    {"--api-key --admin-api-key", "give --api-key-file FILE, so that no key is in the list of processes"},
    {"--ssl-keyfile --ssl-key-file --ssl-certfile --ssl-cert-file", "give --tls-cert FILE and --tls-key FILE to serve"},
    {"--enable-ssl-refresh", "leave it out; SIGHUP makes serve read certificates anew"},
    {"--ssl-ca-certs --ssl-cert-reqs --ssl-ciphers --ssl-keyfile-password",
     "not there; a proxy in front may ask clients for certificates"},
    {"--allowed-origins --cors-origins --cors-allow-origin --allowed-methods --allowed-headers --allow-credentials "
     "--cors-methods --cors-headers --cors-credentials",
     "give --cors-origin ORIGIN to serve; methods and headers need no option, and cookies are never allowed"},
    {"--root-path --api-prefix --middleware --fastapi-root-path", "not there; a proxy in front takes a prefix off"},
    {"--metrics --enable-metrics --no-metrics --slots --no-slots --props --no-webui --webui --no-ui --ui --path "
     "--public-path",
     "serve always has /metrics, and neither slots, props nor a web page"},
    {"-to --timeout --timeout-keep-alive --h11-max-incomplete-event-size --h11-max-header-count --request-timeout",
     "give --slow-client-s S to serve; other limits are fixed"},
    {"--shutdown-timeout --drain-timeout --graceful-shutdown-timeout", "give --grace-s S to serve"},
    {"--sse-ping-interval --sse-keep-alive-interval", "leave it out; 15 s of silence bring a comment"},
    {"--threads-http --api-server-count -asc --workers --num-workers --validation-workers",
     "leave it out; one process serves, and --front-cores says which cores are left to it"},
    {"--max-logprobs --max-top-n-tokens", "leave it out; requests may ask for 20"},
    {"--max-best-of --max-stop-sequences --max-client-batch-size",
     "leave it out; docs/SERVING.md has the limits of a request"},
    {"--generation-config --override-generation-config --preferred-sampling-params",
     "leave it out; the folder's generation_config.json is always used, and requests say what else they want"},
    {"--enable-request-id-headers --enable-tokenizer-info-endpoint --enable-server-load-tracking "
     "--enable-prompt-tokens-details --return-tokens-as-token-ids --enable-offline-docs --disable-fastapi-docs",
     "leave it out; docs/SERVING.md has what requests and answers have"},
    {"-d --daemon --detach --background --keep-alive --keepalive",
     "it runs until it is told to end; systemd runs it as a service (docs/SERVING.md)"},
};

constexpr Foreign kCommands[] = {
    {"run", "fastdecode chat -m DIR talks to a model, and fastdecode generate -m DIR -p TEXT goes on from a prompt"},
    {"cli llama-cli main complete text-completion batched simple",
     "fastdecode generate -m DIR -p TEXT goes on from a prompt, and fastdecode chat -m DIR talks"},
    {"server start launch launch-server llama-server text-generation-launcher api api-server up",
     "fastdecode serve -m DIR answers over HTTP"},
    {"run-batch batch", "fastdecode generate -m DIR --prompts-file FILE --json answers many prompts"},
    {"pull download get fetch push login logout signin signout cp rm delete",
     "nothing is downloaded or kept; -m takes a Hugging Face folder on this host"},
    {"convert quantize convert-hf-to-gguf gguf-split export create",
     "nothing is converted; -m takes a Hugging Face folder as it is"},
    {"list ls ps models stop", "there is no store of models; each command is given one folder with -m"},
    {"show info describe model-info", "fastdecode inspect -m DIR says what a model's folder holds"},
    {"collect-env env check diagnose list-devices", "fastdecode doctor says what this host has and lacks"},
    {"perplexity eval evaluate", "fastdecode bench accuracy -m DIR has the perplexity of texts"},
    {"benchmark llama-bench perf profile", "fastdecode bench and fastdecode latency measure"},
    {"embed embedding rerank", "there are no embeddings; models generate text"},
    {"tokenize detokenize", "fastdecode serve has POST /tokenize and /detokenize"},
    {"rpc-server rpc router", "fastdecode worker --listen ENDPOINT serves this host's memory to an engine"},
};

bool IsNameOf(const Foreign& row, std::string_view name) {
  std::string_view names = row.names;
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

std::string_view FindAnswer(std::span<const Foreign> table, std::string_view name) {
  for (const Foreign& row : table) {
    if (IsNameOf(row, name)) return row.answer;
  }
  return "";
}

std::string WithDashes(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

std::string_view ForeignOptionAnswer(std::string_view name) {
  const std::string given = WithDashes(name);
  if (const std::string_view answer = FindAnswer(kOptions, given); !answer.empty()) return answer;
  if (given.starts_with("--")) return FindAnswer(kOptions, given.substr(0, given.find('.')));
  const size_t digits = given.find_first_of("0123456789");
  return digits < 2 ? "" : FindAnswer(kOptions, given.substr(0, digits));
}

std::string_view ForeignCommandAnswer(std::string_view name) { return FindAnswer(kCommands, WithDashes(name)); }

}  // namespace fastdecode
