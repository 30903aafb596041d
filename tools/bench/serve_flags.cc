#include "tools/bench/serve_flags.h"

#include <algorithm>
#include <fastdecode/fastdecode.hpp>

#include "tools/load/arrivals_flag.h"
#include "tools/load/lengths.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode::serve_bench {

namespace {

// The engine's options but --model, which is a server's name for its model here: -m names the folder.
std::vector<std::string> EngineNames() {
  std::vector<std::string> names = EngineFlagNames();
  names.erase(std::remove(names.begin(), names.end(), "model"), names.end());
  return names;
}

CLI::Option* AddCount(CLI::App* command, const char* name, int& value, int min, int max, const char* help) {
  return command->add_option(name, value, help)->transform(Number(min, max))->type_name("N")->capture_default_str();
}

[[noreturn]] void Refuse(const std::string& what) { throw Error(FD_INVALID_ARGUMENT, what); }

}  // namespace

ServeFlags::ServeFlags(CLI::App* command) : engine(command, EngineNames()) {
  AddServerOptions(command);
  AddPromptOptions(command);
  AddRequestOptions(command);
  AddPaceOptions(command);
  AddSearchOptions(command);
  AddReportOptions(command);
}

void ServeFlags::AddServerOptions(CLI::App* command) {
  CLI::Option* url_option = command->add_option("--url", url, "the server: http://HOST:PORT[/PREFIX] or unix:PATH")
                                ->type_name("URL")
                                ->capture_default_str();
  CLI::Option* name_option =
      command->add_option("--model", model, "the model's name in requests (default: the first that the server has)")
          ->type_name("NAME");
  command
      ->add_option("-m", engine_model,
                   "no server but an engine in this process, with this model's folder and the engine's options")
      ->type_name("DIR")
      ->excludes(url_option)
      ->excludes(name_option);
  CLI::Option* key_option =
      command->add_option("--api-key-file", api_key_file, "file whose first line is the key to send")
          ->type_name("FILE");
  CLI::Option* timeout_option = command->add_option("--timeout-s", timeout_s, "the longest that a request may take")
                                    ->transform(Number(0.001, 1e6))
                                    ->type_name("SECONDS")
                                    ->capture_default_str();
  idle_in_process_ = {{key_option, "an engine in this process asks for no key; leave it out with -m"},
                      {timeout_option, "requests to an engine in this process have no limit; leave it out with -m"}};
}

void ServeFlags::AddPromptOptions(CLI::App* command) {
  input_len_option_ =
      AddCount(command, "--random-input-len,--input-len", prompts.input_len, 1, 1 << 24, "tokens of a random prompt");
  output_len_option_ = AddCount(command, "--random-output-len,--output-len", prompts.output_len, 1, 1 << 24,
                                "the most tokens to generate (max_tokens)");
  command
      ->add_option("--random-range-ratio", prompts.range_ratio, "R: random lengths are drawn from (1-R) to (1+R) times")
      ->transform(Number(0.0, 1.0))
      ->type_name("R")
      ->capture_default_str();
  CLI::Option* workload =
      command->add_option("--workload", prompts.workload, "lengths of a known load: " + load::WorkloadNames())
          ->type_name("NAME");
  CLI::Option* trace = command
                           ->add_option("--trace", prompts.trace,
                                        "lengths and arrivals of a recorded load: BurstGPT's CSV or Mooncake's JSONL")
                           ->type_name("FILE");
  scale_option_ = command->add_option("--scale-lengths", prompts.scale_lengths, "times the lengths of these two")
                      ->transform(Number(1e-4, 1e4))
                      ->type_name("FACTOR")
                      ->capture_default_str();
  command->add_option("--vocab", vocab, "token ids of random prompts (default: all that the server has)")
      ->type_name("LOW-HIGH");
  CLI::Option* words = command->add_flag("--random-text", prompts.random_text, "random words instead of token ids");
  CLI::Option* text = command->add_option("--prompt", prompts.prompt, "this text instead of random prompts");
  CLI::Option* file =
      command->add_option("--prompts-file", prompts.prompts_file,
                          "prompts, one a line: texts or JSON objects {\"prompt\":, \"max_tokens\":} (-: stdin)");
  text->type_name("TEXT")->excludes(file)->excludes(words);
  file->type_name("FILE")->excludes(words);
  for (CLI::Option* lengths : {workload, trace}) {
    lengths->excludes(text)->excludes(file)->excludes(input_len_option_)->excludes(output_len_option_);
  }
  workload->excludes(trace);
  command->add_option("--seed", prompts.seed, "of random prompts, lengths and arrivals; it is not sent")
      ->transform(Number<uint64_t>(0, UINT64_MAX))
      ->type_name("N")
      ->capture_default_str();
}

void ServeFlags::AddRequestOptions(CLI::App* command) {
  command->add_flag("--ignore-eos", prompts.ignore_eos, "generate --random-output-len tokens whatever they are");
  command->add_option("--temperature", prompts.temperature, "to send (default: what the server does without)")
      ->transform(Number(0.0, 100.0))
      ->type_name("T");
  command->add_option("--logprobs", prompts.logprobs, "ask for the log probabilities of so many tokens")
      ->transform(Number(0, 1000))
      ->type_name("N");
  command->add_flag("--no-stream", no_stream, "ask for whole answers instead of streams");
}

void ServeFlags::AddPaceOptions(CLI::App* command) {
  num_prompts_option_ = AddCount(command, "--num-prompts", num_prompts, 1, 10'000'000, "requests to send");
  concurrency_option_ = AddCount(command, "--concurrency,--max-concurrency", concurrency, 1, 65536,
                                 "requests in flight; of an open loop, the most (default: no limit)");
  CLI::Option* warmup_option =
      AddCount(command, "--warmup,--num-warmups", warmup, 0, 1'000'000, "requests to send before, which do not count");
  idle_in_interference_ = {
      {num_prompts_option_,
       "--interference sends the prompts that arrive while its answers are written; leave it out, or give "
       "--request-rate or --random-output-len for more of them"},
      {concurrency_option_, "--interference runs as many answers as --decodes says; give that instead"},
      {warmup_option, "--interference has no requests before; leave it out"}};
  AddNumbers(command, "--request-rate", rates, 1e-3, 1e6,
             "open loop: requests a second, each at its time whatever became of the others; several: a curve")
      ->type_name("LIST")
      ->default_str("");
  arrivals_option_ = load::AddArrivals(command, &prompts.arrivals);
  burstiness_option_ =
      command
          ->add_option_function<double>(
              "--burstiness", [this](double shape) { prompts.arrivals = load::Arrivals::Gamma(shape); },
              "the same as --arrivals gamma:SHAPE")
          ->transform(Number(1e-3, 1e6))
          ->type_name("SHAPE")
          ->excludes(arrivals_option_);
}

void ServeFlags::AddSearchOptions(CLI::App* command) {
  command->add_flag("--find-max-rate", find_max_rate, "find the highest rate at which --goodput's limits are kept");
  command->add_option("--attainment", attainment, "the share of requests that has to keep them")
      ->transform(Number(0.01, 1.0))
      ->type_name("SHARE")
      ->capture_default_str();
  CLI::Option* rate_start_option = command->add_option("--rate-start", rate_start, "requests a second of the first run")
                                       ->transform(Number(1e-3, 1e6))
                                       ->type_name("PER_S")
                                       ->capture_default_str();
  CLI::Option* precision_option =
      command
          ->add_option("--precision", precision, "the rate that is found and the lowest that fails differ by no more")
          ->transform(Number(0.001, 1.0))
          ->type_name("SHARE")
          ->capture_default_str();
  CLI::Option* seeds_option =
      AddCount(command, "--seeds", seeds, 1, 99, "searches, each with other requests; the median counts");
  const char* no_search = "it is of the search for a rate; give --find-max-rate, or leave it out";
  idle_without_search_ = {{rate_start_option, no_search}, {precision_option, no_search}, {seeds_option, no_search}};
  command->add_flag("--interference", interference.asked,
                    "measure the gaps between tokens of running answers with and without arriving prompts");
  CLI::Option* decodes_option =
      AddCount(command, "--decodes", interference.decodes, 1, 65536, "answers that run meanwhile");
  CLI::Option* prompt_len_option = AddCount(command, "--interference-prompt-len", interference.prompt_len, 1, 1 << 24,
                                            "tokens of a prompt that arrives");
  const char* no_interference = "nothing runs for it; give --interference, or leave it out";
  idle_without_interference_ = {{decodes_option, no_interference}, {prompt_len_option, no_interference}};
  AddNumbers(command, "--chunks", interference.chunks, 1, 8192,
             "the same with the engine's --prefill-chunk at each of these; with -m alone")
      ->type_name("LIST")
      ->default_str("");
}

void ServeFlags::AddReportOptions(CLI::App* command) {
  command
      ->add_option("--percentile-metrics", percentile_metrics,
                   "of which to report mean, median and percentiles: ttft, tpot, itl, e2el, client_queue_time "
                   "(default: ttft,tpot,itl,e2el)")
      ->type_name("LIST");
  AddNumbers(command, "--metric-percentiles", percentiles, 0.0, 100.0, "percentiles to report")
      ->type_name("LIST")
      ->default_str("99");
  command
      ->add_option("--goodput", goodput,
                   "limits of a good request in ms, as in ttft:200 tpot:20 e2el:3000 ema_itl:50; reader: ema_itl:50")
      ->type_name("NAME:MS");
  command->add_flag("--save-result", save_result, "write the result to a JSON file in this folder");
  command->add_option("--result-filename", result_filename, "write it to this file")->type_name("FILE");
  command->add_flag("--save-detailed", save_detailed, "have every request in the JSON: times, lengths, text, error");
  command->add_option("--html", html_filename, "write a page of curves, which needs nothing else")->type_name("FILE");
  command->add_flag("--json", json, "one JSON object");
}

void ServeFlags::RefuseIdle(const std::vector<Idle>& options) const {
  for (const auto& [option, advice] : options) {
    if (option->count() > 0) Refuse(option->get_name() + ": " + advice);
  }
}

void ServeFlags::Check() {
  prompts.stream = !no_stream;
  if (!engine_model.empty()) RefuseIdle(idle_in_process_);
  RefuseIdle(interference.asked ? idle_in_interference_ : idle_without_interference_);
  if (!find_max_rate) RefuseIdle(idle_without_search_);
  Metrics();
  const load::Limits limits = load::ParseLimits(goodput, prompts.stream);
  if (!vocab.empty()) ParseIdRange(vocab);
  if (!prompts.workload.empty() && load::FindWorkload(prompts.workload) == nullptr) {
    Refuse("--workload: '" + prompts.workload + "' is none of " + load::WorkloadNames());
  }
  if (scale_option_->count() > 0 && !prompts.has_lengths()) {
    Refuse("--scale-lengths: there is nothing to scale; give --workload or --trace");
  }
  for (const std::string& name : EngineNames()) {
    if (!engine_model.empty() || !engine.Given(name)) continue;
    Refuse("--" + name + ": it is the engine's in this process; give -m, or leave it to the server");
  }
  if (no_stream && !engine_model.empty()) Refuse("--no-stream: an engine in this process has no other answers");
  if (no_stream && interference.asked) Refuse("--no-stream: --interference measures the times of tokens");
  if (find_max_rate && limits.empty())
    Refuse("--find-max-rate: give the limits to keep with --goodput, such as ttft:200");
  if (find_max_rate && !rates.empty()) Refuse("--find-max-rate: it chooses the rates; leave --request-rate out");
  if (find_max_rate && interference.asked) Refuse("--find-max-rate: give it or --interference");
  if (interference.asked && prompts.has_lengths()) {
    Refuse(
        "--interference: its answers are as long as --random-input-len and --random-output-len say; leave "
        "--workload and --trace out");
  }
  if (interference.asked && !prompts.is_random()) Refuse("--interference: its prompts are random");
  if (interference.asked && rates.size() != 1) Refuse("--interference: give the prompts' rate with --request-rate");
  if (!interference.chunks.empty() && (!interference.asked || engine_model.empty())) {
    Refuse("--chunks: it goes with --interference and -m");
  }
  if ((arrivals_option_->count() > 0 || burstiness_option_->count() > 0) && (!is_open() || !prompts.trace.empty())) {
    Refuse("--arrivals, --burstiness: they are of an open loop without a trace; give --request-rate");
  }
  if (!result_filename.empty()) CheckWritable("--result-filename", result_filename);
  if (!html_filename.empty()) CheckWritable("--html", html_filename);
}

size_t ServeFlags::RequestCount() const {
  if (num_prompts_option_->count() > 0) return static_cast<size_t>(num_prompts);
  if (find_max_rate) return load::kSearchRequests;
  return prompts.prompts_file.empty() && prompts.trace.empty() ? static_cast<size_t>(num_prompts) : 0;
}

int ServeFlags::Concurrency() const { return is_open() && concurrency_option_->count() == 0 ? 0 : concurrency; }

ReportOptions ServeFlags::MakeReportOptions() const {
  ReportOptions options;
  options.burstiness = prompts.arrivals.burstiness();
  options.concurrency = Concurrency();
  options.stream = prompts.stream;
  options.metrics = Metrics();
  options.percentiles = percentiles;
  options.limits = load::ParseLimits(goodput, prompts.stream);
  return options;
}

std::vector<std::string> ServeFlags::Metrics() const {
  const bool stream = prompts.stream;
  if (percentile_metrics.empty()) {
    return stream ? std::vector<std::string>{"ttft", "tpot", "itl", "e2el"} : std::vector<std::string>{"e2el"};
  }
  std::vector<std::string> metrics = SplitAtCommas(percentile_metrics);
  for (const std::string& name : metrics) {
    if (std::find(kMetricNames.begin(), kMetricNames.end(), name) == kMetricNames.end()) {
      std::string known;
      for (const std::string& other : kMetricNames) known += (known.empty() ? "" : ", ") + other;
      Refuse("--percentile-metrics: '" + name + "' is none of " + known);
    }
    if (!stream && (name == "ttft" || name == "tpot" || name == "itl")) {
      Refuse("--percentile-metrics: " + name + " is not known with --no-stream; give e2el");
    }
  }
  return metrics;
}

}  // namespace fastdecode::serve_bench
