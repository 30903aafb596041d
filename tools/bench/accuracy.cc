// fastdecode bench accuracy: what the type of K and V costs, as differences of logits from those of exact KV.
#include "tools/bench/accuracy.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fastdecode/fastdecode_bench.hpp>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/float_types.h"
#include "nlohmann/json.hpp"
#include "tools/answer.h"
#include "tools/bench/logit_comparison.h"
#include "tools/bench/summary.h"
#include "tools/engine_flags.h"
#include "tools/load_engine.h"
#include "tools/option_values.h"
#include "tools/output.h"
#include "tools/read_file.h"

namespace fastdecode {

namespace {

struct AccuracyFlags {
  std::vector<std::string> texts;
  std::string kv_types;  // empty: all
  int samples = 32;
  int max_tokens = 0;
  double logits_gib = 2;
  bool json = false;
};

// What is fed at once: all but its last token is the prompt, and every position predicts the token after it.
using Piece = std::vector<int32_t>;

struct TextFile {
  std::string path;
  std::string text;
};

struct Texts {
  std::string from;  // what they are
  std::vector<Piece> pieces;
};

struct AccuracyReport {
  Texts texts;
  int vocab = 0;
  int max_context = 0;
  std::vector<LogitComparison> comparisons;  // one for each type
  std::vector<std::string> machines;         // what each type's engine says of itself
};

// ---- What the command line says

std::vector<KvType> ChooseKvTypes(const AccuracyFlags& flags) {
  if (flags.kv_types.empty()) return {std::begin(kKvTypes), std::end(kKvTypes)};
  std::vector<KvType> types;
  for (const std::string& name : SplitAtCommas(flags.kv_types)) types.push_back(ParseKvType("--kv-types", name));
  return types;
}

std::unique_ptr<InferenceEngine> MakeEngine(const EngineFlags& flags, const std::string& compute, KvType kv_type) {
  const std::unique_ptr<EngineOptions> options = flags.Build();
  options->Set("compute", compute);
  options->Set("kv-type", KvTypeName(kv_type));
  return LoadEngine(*options);
}

// ---- Texts

// Appends what follows `beginning` (bos, or nothing) in pieces that fit the context.
void AppendPieces(const Piece& beginning, const Piece& ids, size_t tokens_max, std::vector<Piece>* pieces) {
  const size_t room = tokens_max - std::min(tokens_max - 1, beginning.size());
  for (size_t first = 0; first < ids.size(); first += room) {
    Piece& piece = pieces->emplace_back(beginning);
    piece.insert(piece.end(), ids.begin() + static_cast<ptrdiff_t>(first),
                 ids.begin() + static_cast<ptrdiff_t>(std::min(ids.size(), first + room)));
  }
}

Texts TokenizeFiles(const InferenceEngine& engine, const AccuracyFlags& flags, const std::vector<TextFile>& files) {
  Texts texts{"files", {}};
  const Piece beginning = engine.Tokenize("");
  for (const auto& [path, text] : files) {
    Piece ids = engine.Tokenize(text, /*add_special_tokens=*/false);
    if (beginning.size() + ids.size() < 2) {
      throw Error(FD_INVALID_ARGUMENT, path + ": has " + std::to_string(ids.size()) +
                                           " token(s), too few: there must be one to predict from those before it");
    }
    if (flags.max_tokens > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(flags.max_tokens)));
    AppendPieces(beginning, ids, static_cast<size_t>(engine.max_context()), &texts.pieces);
  }
  return texts;
}

// The i-th token of a random text.
int32_t RandomToken(const InferenceEngine& engine, uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(engine.vocab_size()));
}

// What the reference itself writes at temperature 1, from bos to its end.
Texts SampleTexts(InferenceEngine& engine, const AccuracyFlags& flags) {
  Texts texts{"the reference's own", {}};
  const Piece beginning = engine.Tokenize("");
  const int room = engine.max_context() - static_cast<int>(std::max<size_t>(beginning.size(), 1));
  std::vector<TokenStream> streams;
  for (int i = 0; i < flags.samples; ++i) {
    texts.pieces.push_back(beginning);
    if (beginning.empty()) texts.pieces.back() = {RandomToken(engine, static_cast<uint64_t>(i))};
    GenerateRequest request(texts.pieces.back());
    request.fields.max_tokens = static_cast<uint32_t>(flags.max_tokens > 0 ? std::min(flags.max_tokens, room) : room);
    request.fields.seed = static_cast<uint64_t>(i);
    streams.push_back(engine.Submit(request));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    const Answer answer = ReadAnswer(streams[i], LiveOutput::kNone);
    if (answer.finish == FD_FINISH_ERROR) throw Error(FD_UNAVAILABLE, answer.error);
    for (const Answer::Token& token : answer.tokens) texts.pieces[i].push_back(token.id);
  }
  return texts;
}

Texts RandomTexts(const InferenceEngine& engine, const AccuracyFlags& flags) {
  Texts texts{"random tokens", std::vector<Piece>(static_cast<size_t>(flags.samples))};
  const int tokens = flags.max_tokens > 0 ? std::min(flags.max_tokens, engine.max_context()) : engine.max_context();
  uint64_t count = 0;
  for (Piece& piece : texts.pieces) {
    for (int i = 0; i < tokens; ++i) piece.push_back(RandomToken(engine, count++));
  }
  return texts;
}

Texts MakeTexts(InferenceEngine& engine, const AccuracyFlags& flags, const std::vector<TextFile>& files) {
  Texts texts = !files.empty()           ? TokenizeFiles(engine, flags, files)
                : engine.has_tokenizer() ? SampleTexts(engine, flags)
                                         : RandomTexts(engine, flags);
  std::erase_if(texts.pieces, [](const Piece& piece) { return piece.size() < 2; });  // one token predicts nothing
  if (texts.pieces.empty()) {
    throw Error(FD_INVALID_ARGUMENT,
                "the texts have no token to predict; give --text, or more --samples or --max-tokens");
  }
  return texts;
}

// ---- Measuring

// [piece's tokens - 1][vocab]: of the tokens after each but the last.
std::vector<float> ComputeLogits(InferenceEngine& engine, const Piece& piece, const std::string& whose) {
  GenerateRequest request(Piece(piece.begin(), piece.end() - 1));
  std::vector<float> logits(request.prompt_ids.size() * static_cast<size_t>(engine.vocab_size()));
  BenchRequest bench;
  bench.prompt_logits = logits.data();
  bench.prompt_logits_floats = logits.size();
  request.fields.max_tokens = 1;
  request.fields.temperature = 0;
  TokenStream stream = Submit(engine, request, bench);
  const Answer answer = ReadAnswer(stream, LiveOutput::kNone);
  if (answer.finish == FD_FINISH_ERROR) throw Error(FD_UNAVAILABLE, answer.error);
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) {
    throw Error(FD_INTERNAL, whose + ": there are logits that are not finite");
  }
  return logits;
}

void ShowProgress(const std::string& whose, size_t done, size_t all) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r%s: %zu / %zu texts%s", whose.c_str(), done, all, done == all ? "\n" : "");
}

void Compare(const Piece& piece, const std::vector<float>& reference, const std::vector<float>& other,
             LogitComparison* comparison) {
  const size_t positions = piece.size() - 1, vocab = reference.size() / positions;
  for (size_t i = 0; i < positions; ++i) {
    comparison->Add(std::span(reference).subspan(i * vocab, vocab), std::span(other).subspan(i * vocab, vocab),
                    piece[i + 1]);
  }
}

// How many pieces from `first` on are compared in one go: at least one, and no more logits than `floats_max`.
size_t GroupSize(const AccuracyReport& report, size_t first, size_t floats_max) {
  const std::vector<Piece>& pieces = report.texts.pieces;
  size_t count = 0, floats = 0;
  while (first + count < pieces.size()) {
    floats += (pieces[first + count].size() - 1) * static_cast<size_t>(report.vocab);
    if (count > 0 && floats > floats_max) break;
    ++count;
  }
  return count;
}

AccuracyReport Measure(const AccuracyFlags& flags, const EngineFlags& engine_flags, const std::vector<KvType>& types) {
  std::vector<TextFile> files;  // all of them before a model is loaded
  for (const std::string& path : flags.texts) files.push_back({path, ReadFile(path)});
  AccuracyReport report;
  report.comparisons.resize(types.size());
  report.machines.resize(types.size());
  std::unique_ptr<InferenceEngine> reference = MakeEngine(engine_flags, "f32", KvType::kF32);
  report.vocab = reference->vocab_size();
  report.max_context = reference->max_context();
  report.texts = MakeTexts(*reference, flags, files);
  const std::vector<Piece>& pieces = report.texts.pieces;
  for (size_t first = 0, count = 0; first < pieces.size(); first += count) {
    count = GroupSize(report, first, static_cast<size_t>(flags.logits_gib * (1 << 30) / sizeof(float)));
    if (reference == nullptr) reference = MakeEngine(engine_flags, "f32", KvType::kF32);
    std::vector<std::vector<float>> exact;
    for (size_t i = 0; i < count; ++i) {
      exact.push_back(ComputeLogits(*reference, pieces[first + i], "the reference"));
      ShowProgress("the reference", first + i + 1, pieces.size());
    }
    reference.reset();  // one engine at a time: each has weights, and wants cores of its own
    for (size_t t = 0; t < types.size(); ++t) {
      const std::unique_ptr<InferenceEngine> engine = MakeEngine(engine_flags, engine_flags.Value("compute"), types[t]);
      report.machines[t] = engine->Describe();
      for (size_t i = 0; i < count; ++i) {
        const Piece& piece = pieces[first + i];
        const std::string whose = KvTypeName(types[t]);
        Compare(piece, exact[i], ComputeLogits(*engine, piece, whose), &report.comparisons[t]);
        ShowProgress(whose, first + i + 1, pieces.size());
      }
    }
  }
  return report;
}

// ---- What is said of it

nlohmann::json Figures(const AccuracyReport& report, const std::vector<KvType>& types, const EngineFlags& flags) {
  const LogitDifference any = report.comparisons[0].Result();
  nlohmann::json out = {
      {"model", flags.Value("model")},
      {"compute", flags.Value("compute")},
      {"max_context", report.max_context},
      {"vocab", report.vocab},
      {"texts_from", report.texts.from},
      {"texts", report.texts.pieces.size()},
      {"reference",
       {{"compute", "f32"},
        {"kv_type", KvTypeName(KvType::kF32)},
        {"logit_deviation", any.reference_deviation},
        {"perplexity", any.reference_perplexity}}},
      {"types", nlohmann::json::array()},
  };
  for (size_t t = 0; t < types.size(); ++t) {
    const LogitDifference d = report.comparisons[t].Result();
    out["types"].push_back(
        {{"kv_type", KvTypeName(types[t])},
         {"positions", d.positions},
         {"logit_error", {{"mean", d.error_mean}, {"max", d.error_max}}},
         {"logit_error_of_deviation",
          {{"mean", d.error_mean / d.reference_deviation}, {"max", d.error_max / d.reference_deviation}}},
         {"kl_nats", {{"mean", d.kl_mean}, {"max", d.kl_max}}},
         {"top1_percent", 100 * d.top1_share},
         {"perplexity", d.perplexity},
         {"perplexity_ratio", d.perplexity / d.reference_perplexity},
         {"machine", report.machines[t]}});
  }
  return out;
}

std::string Text(const AccuracyReport& report, const std::vector<KvType>& types, const EngineFlags& flags) {
  const LogitDifference any = report.comparisons[0].Result();
  char line[512];
  std::snprintf(line, sizeof(line),
                "%zu texts (%s), %llu positions, vocabulary of %d\n"
                "reference: compute f32, KV f32: perplexity %.4f, logits' standard deviation %.3f\n"
                "compute %s and KV of the type; logit errors as shares of that deviation, KL in nats\n\n"
                "%-6s %12s %12s %12s %12s %10s %12s %10s\n",
                report.texts.pieces.size(), report.texts.from.c_str(), static_cast<unsigned long long>(any.positions),
                report.vocab, any.reference_perplexity, any.reference_deviation, flags.Value("compute").c_str(), "KV",
                "error, mean", "error, max", "KL, mean", "KL, max", "top-1, %", "perplexity", "ratio");
  std::string text = line;
  for (size_t t = 0; t < types.size(); ++t) {
    const LogitDifference d = report.comparisons[t].Result();
    std::snprintf(line, sizeof(line), "%-6s %12.3g %12.3g %12.3g %12.3g %10.3f %12.4f %10.5f\n", KvTypeName(types[t]),
                  d.error_mean / d.reference_deviation, d.error_max / d.reference_deviation, d.kl_mean, d.kl_max,
                  100 * d.top1_share, d.perplexity, d.perplexity / d.reference_perplexity);
    text += line;
  }
  return text;
}

void BenchAccuracy(const AccuracyFlags& flags, EngineFlags& engine_flags) {
  engine_flags.SetDefault("compute", "f32");
  engine_flags.SetDefault("batch-invariant", "true");
  engine_flags.SetDefault("max-sequences", "16");
  if (!flags.texts.empty()) engine_flags.SetDefault("need-text", "true");
  const std::vector<KvType> types = ChooseKvTypes(flags);
  const AccuracyReport report = Measure(flags, engine_flags, types);
  WriteOut(flags.json ? ToLine(Figures(report, types, engine_flags)) : Text(report, types, engine_flags));
}

}  // namespace

void AddBenchAccuracy(CLI::App* bench) {
  auto flags = std::make_shared<AccuracyFlags>();
  CLI::App* command = bench->add_subcommand(
      "accuracy", "What each type of K and V costs: logit error, KL, top-1 agreement and perplexity against f32");
  command
      ->add_option("--text", flags->texts, "a file that is one text (-: stdin); may be repeated (default: --samples)")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command
      ->add_option("--samples", flags->samples,
                   "texts without --text: written by the model itself; random tokens if it has no tokenizer")
      ->transform(Number(1, 4096))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--max-tokens", flags->max_tokens, "of each text at most, the rest is left out; 0: all")
      ->transform(Number(0, 1 << 30))
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--kv-types", flags->kv_types, "types to compare, comma-separated (default: " + KvTypeNames() + ")")
      ->type_name("LIST");
  command
      ->add_option("--logits-gib", flags->logits_gib,
                   "of the reference to keep; more texts are compared in groups, and engines made anew for each")
      ->transform(Number(0.0, 65536.0))
      ->type_name("GIB")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  const std::vector<FlagHelp> helps = {
      {"compute", "of what is compared with the reference: auto (bf16 where the CPU has it), bf16, or f32 [f32]"},
      {"batch-invariant", "one order of summation for every batch size, so that results repeat bit for bit [true]"},
      {"max-context", "longer texts are measured in pieces of so many tokens (0: the model's, at most 8192) [0]"},
      {"max-sequences", "samples that are written at once [16]"}};
  std::vector<std::string> names = EngineFlagNames();
  std::erase(names, "kv-type");
  auto engine_flags = std::make_shared<EngineFlags>(command, names, helps);
  command->callback([flags, engine_flags] { BenchAccuracy(*flags, *engine_flags); });
}

}  // namespace fastdecode
