// fastdecode bench serve: completions over HTTP, in a closed loop.
#include "tools/bench/serve.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/bench/serve_client.h"
#include "tools/bench/serve_prompts.h"
#include "tools/bench/serve_report.h"
#include "tools/interrupt.h"
#include "tools/option_values.h"
#include "tools/output.h"
#include "tools/prompts.h"

namespace fastdecode {

namespace serve_bench {

namespace {

struct ServeFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string model, api_key_file, vocab;
  PromptOptions prompts;
  int num_prompts = 1000, concurrency = 1, warmup = 0;
  double timeout_s = 600;
  bool no_stream = false, json = false, save_result = false, save_detailed = false;
  std::string percentile_metrics;
  std::vector<double> percentiles = {99};
  std::vector<std::string> goodput;
  std::string result_filename;

  CLI::Option* num_prompts_option = nullptr;
};

// ttft:200, tpot:20, e2el:3000.
std::map<std::string, double> ParseGoodput(const std::vector<std::string>& values, bool stream) {
  std::map<std::string, double> limits;
  for (const std::string& value : values) {
    const size_t colon = std::min(value.find(':'), value.size());
    const std::string name = value.substr(0, colon);
    double limit_ms = 0;
    if (name != "ttft" && name != "tpot" && name != "e2el") {
      throw Error(FD_INVALID_ARGUMENT, "--goodput: '" + value + "' begins with none of ttft:, tpot:, e2el:");
    }
    if (colon == value.size() || !ParseNumber(std::string_view(value).substr(colon + 1), &limit_ms) || limit_ms < 0) {
      throw Error(FD_INVALID_ARGUMENT,
                  "--goodput: '" + value + "' has no milliseconds after " + name + ":, as in " + name + ":200");
    }
    if (!stream && name != "e2el") {
      throw Error(FD_INVALID_ARGUMENT, "--goodput: " + name + " is not known with --no-stream; give e2el:MS");
    }
    limits[name] = limit_ms;
  }
  return limits;
}

std::vector<std::string> ParseMetrics(const std::string& list, bool stream) {
  if (list.empty())
    return stream ? std::vector<std::string>{"ttft", "tpot", "itl", "e2el"} : std::vector<std::string>{"e2el"};
  std::vector<std::string> metrics = SplitAtCommas(list);
  for (const std::string& name : metrics) {
    if (std::find(kMetricNames.begin(), kMetricNames.end(), name) == kMetricNames.end()) {
      std::string known;
      for (const std::string& other : kMetricNames) known += (known.empty() ? "" : ", ") + other;
      throw Error(FD_INVALID_ARGUMENT, "--percentile-metrics: '" + name + "' is none of " + known);
    }
    if (!stream && (name == "ttft" || name == "tpot" || name == "itl")) {
      throw Error(FD_INVALID_ARGUMENT, "--percentile-metrics: " + name + " is not known with --no-stream; give e2el");
    }
  }
  return metrics;
}

// The server's first model.
std::string AskModel(const Server& server) {
  const std::string body = Get(server, "/v1/models");
  const nlohmann::json models = nlohmann::json::parse(body, nullptr, false);
  const nlohmann::json::json_pointer id("/data/0/id");
  if (!models.is_discarded() && models.contains(id) && models[id].is_string()) return models[id];
  throw Error(FD_UNAVAILABLE, server.url.Text() + "/v1/models names no model; give --model");
}

// The ids of random prompts.
IdRange FindIds(const ServeFlags& flags, const Server& server) {
  if (!flags.vocab.empty()) return ParseIdRange(flags.vocab);
  if (!flags.prompts.is_random() || flags.prompts.random_text) return {};
  std::string why;
  try {
    const nlohmann::json info = nlohmann::json::parse(Get(server, "/tokenizer_info"), nullptr, false);
    const int64_t size = info.is_object() && info.contains("vocab_size") && info["vocab_size"].is_number_integer()
                             ? info["vocab_size"].get<int64_t>()
                             : 0;
    if (size > 0) return {0, size - 1};
    why = server.url.Text() + "/tokenizer_info does not say vocab_size";
  } catch (const Error& error) {
    why = error.what();
  }
  throw Error(FD_INVALID_ARGUMENT,
              "--vocab: the server does not say which token ids there are (" + why +
                  "); give --vocab LOW-HIGH, or --random-text for prompts of words, or --prompt or --prompts-file");
}

LoadOptions MakeLoadOptions(const ServeFlags& flags) {
  LoadOptions options;
  options.concurrency = flags.concurrency;
  options.stream = flags.prompts.stream;
  options.keep_text = flags.save_detailed;
  options.is_interrupted = [] { return InterruptGuard::Signal() != 0; };
  return options;
}

// What a person who waits sees.
void ShowProgressOf(size_t requests, LoadOptions* options) {
  if (isatty(STDERR_FILENO) == 0) return;
  options->report_progress = [requests, shown = SIZE_MAX](size_t ended) mutable {
    if (ended == shown) return;
    shown = ended;
    std::fprintf(stderr, "\r%zu of %zu requests", ended, requests);
  };
}

void ThrowIfInterrupted() {
  if (const int signal = InterruptGuard::Signal(); signal != 0) throw Interrupted(signal);
}

void Warm(const ServeFlags& flags, const Server& server, const std::string& model, const IdRange& ids) {
  if (flags.warmup == 0) return;
  PromptOptions prompts = flags.prompts;
  prompts.seed = ~prompts.seed;  // what is measured is not to be found in a cache of prompts
  const LoadRun run = RunClosedLoop(server, MakeRequests(prompts, model, ids, static_cast<size_t>(flags.warmup)),
                                    MakeLoadOptions(flags));
  ThrowIfInterrupted();
  const Report report = MakeReport(run, {});
  if (report.completed > 0) return;
  throw Error(FD_UNAVAILABLE, "all warm-up requests failed:\n" + FailureText(report));
}

std::string Date() {
  const std::time_t now = std::time(nullptr);
  std::tm local;
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  return text;
}

// The file is called what `vllm bench serve` calls it.
std::string DefaultFileName(const ReportOptions& options, const std::string& date) {
  const std::string model = options.model.substr(options.model.find_last_of('/') + 1);
  return "openai-infqps-concurrency" + std::to_string(options.concurrency) + "-" + model + "-" + date + ".json";
}

void Warn(const Report& report, const LoadRun& run) {
  if (report.failed > 0) {
    std::fprintf(stderr, "fastdecode: warning: %lld of %lld requests failed:\n%s",
                 static_cast<long long>(report.failed), static_cast<long long>(report.completed + report.failed),
                 FailureText(report).c_str());
  }
  if (InterruptGuard::Signal() == 0) return;
  const size_t begun = std::count_if(run.results.begin(), run.results.end(),
                                     [](const RequestResult& result) { return result.start_ns > 0; });
  const auto ended = static_cast<size_t>(report.completed + report.failed);
  std::fprintf(stderr, "fastdecode: warning: interrupted: %zu of %zu requests had ended; %zu in flight do not count\n",
               ended, run.results.size(), begun - ended);
}

void BenchServe(ServeFlags& flags) {
  const InterruptGuard guard;
  flags.prompts.stream = !flags.no_stream;
  ReportOptions options;
  options.concurrency = flags.concurrency;
  options.stream = flags.prompts.stream;
  options.metrics = ParseMetrics(flags.percentile_metrics, options.stream);
  options.percentiles = flags.percentiles;
  options.goodput_ms = ParseGoodput(flags.goodput, options.stream);
  if (!flags.vocab.empty()) ParseIdRange(flags.vocab);
  if (!flags.result_filename.empty()) CheckWritable("--result-filename", flags.result_filename);

  const Server server = FindServer(ParseServerUrl(flags.url), ReadApiKey(flags.api_key_file), flags.timeout_s);
  options.model = flags.model.empty() ? AskModel(server) : flags.model;
  const IdRange ids = FindIds(flags, server);
  const bool one_a_line = !flags.prompts.prompts_file.empty() && flags.num_prompts_option->count() == 0;
  const std::vector<LoadRequest> requests =
      MakeRequests(flags.prompts, options.model, ids, one_a_line ? 0 : static_cast<size_t>(flags.num_prompts));
  options.num_prompts = static_cast<int64_t>(requests.size());
  Warm(flags, server, options.model, ids);

  LoadOptions load = MakeLoadOptions(flags);
  ShowProgressOf(requests.size(), &load);
  const LoadRun run = RunClosedLoop(server, requests, load);
  if (load.report_progress) std::fprintf(stderr, "\r\033[K");
  const Report report = MakeReport(run, options);
  const std::string date = Date();
  const nlohmann::ordered_json json = ToJson(report, run, options, flags.save_detailed, date);
  const std::string line = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  WriteOut(flags.json ? line : ToTable(report, run, options));
  if (flags.save_result || !flags.result_filename.empty()) {
    const std::string path = flags.result_filename.empty() ? DefaultFileName(options, date) : flags.result_filename;
    WriteFile("--save-result", path, [&](std::ostream& out) { out << line; });
  }
  Warn(report, run);
  ThrowIfInterrupted();
  if (report.completed == 0) throw Error(FD_UNAVAILABLE, "no request succeeded at " + server.url.Text());
}

void AddServerOptions(CLI::App* command, ServeFlags& flags) {
  command->add_option("--url", flags.url, "the server: http://HOST:PORT[/PREFIX] or unix:PATH")
      ->type_name("URL")
      ->capture_default_str();
  command->add_option("--model", flags.model, "the model's name in requests (default: the first that the server has)")
      ->type_name("NAME");
  command->add_option("--api-key-file", flags.api_key_file, "file whose first line is the key to send")
      ->type_name("FILE");
  command->add_option("--timeout-s", flags.timeout_s, "the longest that a request may take")
      ->transform(Number(0.001, 1e6))
      ->type_name("SECONDS")
      ->capture_default_str();
}

void AddRequestOptions(CLI::App* command, ServeFlags& flags) {
  PromptOptions& prompts = flags.prompts;
  const auto add = [&](const char* name, int& value, int min, int max, const char* help) {
    return command->add_option(name, value, help)->transform(Number(min, max))->type_name("N")->capture_default_str();
  };
  flags.num_prompts_option = add("--num-prompts", flags.num_prompts, 1, 10'000'000, "requests to send");
  add("--concurrency,--max-concurrency", flags.concurrency, 1, 65536, "requests in flight");
  add("--warmup,--num-warmups", flags.warmup, 0, 1'000'000, "requests to send before, which do not count");
  add("--random-input-len,--input-len", prompts.input_len, 1, 1 << 24, "tokens of a random prompt");
  add("--random-output-len,--output-len", prompts.output_len, 1, 1 << 24, "the most tokens to generate (max_tokens)");
  command
      ->add_option("--random-range-ratio", prompts.range_ratio, "R: random lengths are drawn from (1-R) to (1+R) times")
      ->transform(Number(0.0, 1.0))
      ->type_name("R")
      ->capture_default_str();
  command->add_option("--vocab", flags.vocab, "token ids of random prompts (default: all that the server has)")
      ->type_name("LOW-HIGH");
  CLI::Option* words = command->add_flag("--random-text", prompts.random_text, "random words instead of token ids");
  CLI::Option* text = command->add_option("--prompt", prompts.prompt, "this text instead of random prompts");
  CLI::Option* file =
      command->add_option("--prompts-file", prompts.prompts_file,
                          "prompts, one a line: texts or JSON objects {\"prompt\":, \"max_tokens\":} (-: stdin)");
  text->type_name("TEXT")->excludes(file)->excludes(words);
  file->type_name("FILE")->excludes(words);
  command->add_option("--seed", prompts.seed, "of the random prompts; it is not sent")
      ->transform(Number<uint64_t>(0, UINT64_MAX))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--ignore-eos", prompts.ignore_eos, "generate --random-output-len tokens whatever they are");
  command->add_option("--temperature", prompts.temperature, "to send (default: what the server does without)")
      ->transform(Number(0.0, 100.0))
      ->type_name("T");
  command->add_option("--logprobs", prompts.logprobs, "ask for the log probabilities of so many tokens")
      ->transform(Number(0, 1000))
      ->type_name("N");
  command->add_flag("--no-stream", flags.no_stream, "ask for whole answers instead of streams");
}

void AddReportOptions(CLI::App* command, ServeFlags& flags) {
  command
      ->add_option("--percentile-metrics", flags.percentile_metrics,
                   "of which to report mean, median and percentiles: ttft, tpot, itl, e2el, client_queue_time "
                   "(default: ttft,tpot,itl,e2el)")
      ->type_name("LIST");
  AddNumbers(command, "--metric-percentiles", flags.percentiles, 0.0, 100.0, "percentiles to report")
      ->type_name("LIST")
      ->default_str("99");
  command->add_option("--goodput", flags.goodput, "limits of a good request in ms, as in ttft:200 tpot:20 e2el:3000")
      ->type_name("NAME:MS");
  command->add_flag("--save-result", flags.save_result, "write the result to a JSON file in this folder");
  command->add_option("--result-filename", flags.result_filename, "write it to this file")->type_name("FILE");
  command->add_flag("--save-detailed", flags.save_detailed,
                    "have every request in the JSON: times, lengths, text, error");
  command->add_flag("--json", flags.json, "one JSON object");
}

}  // namespace

}  // namespace serve_bench

void AddBenchServe(CLI::App* bench) {
  auto flags = std::make_shared<serve_bench::ServeFlags>();
  CLI::App* command =
      bench->add_subcommand("serve", "Load a server of the OpenAI completions API: tokens/s, TTFT, ITL");
  serve_bench::AddServerOptions(command, *flags);
  serve_bench::AddRequestOptions(command, *flags);
  serve_bench::AddReportOptions(command, *flags);
  command->callback([flags] { serve_bench::BenchServe(*flags); });
}

}  // namespace fastdecode
