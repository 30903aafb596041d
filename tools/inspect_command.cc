// fastdecode inspect: what a model's folder holds, and what fits into a memory.
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/commands.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  std::string model;
  std::string memory;  // empty: nobody asks
  bool json = false;
};

// Bytes of "40GB", "40GiB" or "40", which is GiB.
uint64_t ReadMemory(const std::string& text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"GiB", 0x1p30}, {"GB", 1e9}, {"TiB", 0x1p40}, {"TB", 1e12},
                             {"MiB", 0x1p20}, {"MB", 1e6}, {"", 0x1p30}};
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    double number = 0;
    std::string_view digits = text;
    digits.remove_suffix(unit.name.size());
    while (digits.ends_with(' ')) digits.remove_suffix(1);
    if (ParseNumber(digits, &number) && number > 0 && number * unit.bytes < 0x1p60) {
      return static_cast<uint64_t>(std::llround(number * unit.bytes));
    }
    break;
  }
  throw Error(FD_INVALID_ARGUMENT,
              "--memory: '" + text + "' is no size above 0, such as 40GB, 40GiB or 40, which is GiB");
}

// "13,015,864,320"
std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string SizeText(double bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (bytes *= 0x1p-10; bytes >= 1024 && unit < 3; bytes *= 0x1p-10) ++unit;
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f %s", bytes, kUnits[unit]);
  return text;
}

// "1 layer", "2 layers"
std::string CountText(int64_t number, const char* one, const char* several) {
  return Grouped(number) + " " + (number == 1 ? one : several);
}

std::string Name(const Json& value) { return value.is_string() ? value.get<std::string>() : "unknown"; }

// "0-4, 6-10"
std::string Ranges(const Json& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1].get<int>() == numbers[end].get<int>() + 1) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(numbers[i].get<int>());
    if (end > i) text += "-" + std::to_string(numbers[end].get<int>());
    i = end + 1;
  }
  return text;
}

// A line of the report: what it is about, and what there is to say.
class ModelReport {
 public:
  void Line(const std::string& name, const std::string& value) {
    std::string padded = name;
    padded.resize(std::max<size_t>(kNameWidth, name.size() + 1), ' ');
    text_ += padded + value + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  static constexpr size_t kNameWidth = 16;
  std::string text_;
};

std::string PositionsText(const Json& positions) {
  const std::string kind = Name(positions["kind"]);
  if (kind == "none") return "no positions";
  if (kind != "rope") return kind + " positions";
  char text[160];
  std::snprintf(text, sizeof(text), "rope, theta %.10g", positions["theta"].get<double>());
  std::string line = text;
  const std::string scaling = Name(positions["scaling"]);
  if (scaling != "default") line += ", scaling " + scaling;
  if (positions.contains("factor")) {
    std::snprintf(text, sizeof(text), " by %.10g", positions["factor"].get<double>());
    line += text;
  }
  if (positions.contains("rotated_dims")) {
    line += ", of " + std::to_string(positions["rotated_dims"].get<int>()) + " elements of a head";
  }
  return line;
}

std::string NormText(const Json& norm) {
  std::string text = norm["kind"] == "rms" ? "RMS" : "LayerNorm";
  const Json& places = norm["places"];
  for (size_t i = 0; i < places.size(); ++i) {
    const std::string place = places[i];
    text += (i == 0 ? ", " : " and ") + std::string(place == "before"  ? "before attention and MLP"
                                                    : place == "after" ? "on what they add"
                                                                       : "behind their sums");
  }
  if (norm["qk"] == "head") text += "; of each head of q and k";
  if (norm["qk"] == "row") text += "; of all heads of q and k at once";
  return text;
}

void AddModel(const Json& model, ModelReport* report) {
  const auto number = [&model](const char* name) { return Grouped(model[name].get<int64_t>()); };
  report->Line("layers", number("layers") + " of " + number("hidden_size") + ", " + number("heads") + " query and " +
                             number("kv_heads") + " KV heads of " + number("head_dim"));
  for (const Json& kind : model["layer_kinds"]) {
    const std::string window =
        kind["window"].is_null() ? "sees all" : "sees " + Grouped(kind["window"].get<int64_t>()) + " tokens";
    report->Line("", CountText(kind["count"].get<int64_t>(), "layer", "layers") + " (" + Ranges(kind["layers"]) +
                         "): " + window + "; " + PositionsText(kind["positions"]));
  }
  report->Line("norm", NormText(model["norm"]) + (model["parallel"] ? "; attention and MLP side by side" : ""));
  report->Line("mlp", number("intermediate_size") + ", " + Name(model["mlp"]["activation"]) +
                          (model["mlp"]["gated"] ? ", gated" : ", not gated"));
  report->Line("vocabulary", number("vocab_size") +
                                 (model["tied_embeddings"] ? ", the head is the embedding" : ", a head of its own"));
  report->Line("context", number("max_context") + " tokens");
  report->Line("parameters", number("parameters"));
  const Json& weights = model["weight_bytes"];
  report->Line("weights", SizeText(weights["bf16"].get<double>()) + " in 16 bits, " +
                              SizeText(weights["f32"].get<double>()) + " in f32");
  std::string kv;
  for (const auto& [type, bytes] : model["kv_bytes_per_token"].items()) {
    kv += (kv.empty() ? "" : ", ") + type + " " + Grouped(bytes.get<int64_t>());
  }
  report->Line("KV of a token", kv + " bytes");
}

void AddMemory(const Json& memory, ModelReport* report) {
  report->Line("memory", SizeText(memory["usable_bytes"].get<double>()) + " are used of " +
                             SizeText(memory["bytes"].get<double>()) + "; weights in 16 bits leave " +
                             SizeText(memory["kv_bytes"].get<double>()) + " for KV");
  for (const auto& [type, fits] : memory["fits"].items()) {
    std::string line = type + ": " + Grouped(fits["tokens"].get<int64_t>()) + " tokens";
    for (const int length : {512, 2048}) {
      const int64_t sequences = fits["sequences_of_" + std::to_string(length)].get<int64_t>();
      line += ", " + CountText(sequences, "sequence", "sequences") + " of " + Grouped(length);
    }
    report->Line("", line);
  }
}

void AddFiles(const Json& model, ModelReport* report) {
  const Json& checkpoint = model["checkpoint"];
  if (!checkpoint.is_null()) {
    std::string types;
    for (const auto& [type, bytes] : checkpoint["bytes_by_type"].items()) {
      types += (types.empty() ? "" : ", ") + type + " " + SizeText(bytes.get<double>());
    }
    report->Line("checkpoint", CountText(checkpoint["tensors"].get<int64_t>(), "tensor", "tensors") + " in " +
                                   CountText(checkpoint["files"].get<int64_t>(), "file", "files") + ": " + types);
    for (const Json& part : checkpoint["skipped"]) report->Line("not read", Name(part));
  }
  const Json &tokenizer = model["tokenizer"], &chat = model["chat_template"];
  report->Line("tokenizer", tokenizer.is_null() ? "none"
                                                : Name(tokenizer["file"]) + ", " +
                                                      Grouped(tokenizer["tokens"].get<int64_t>()) + " tokens");
  std::string names;
  if (!chat.is_null()) {
    for (const Json& name : chat["names"]) names += (names.empty() ? "" : ", ") + Name(name);
  }
  report->Line("chat template", chat.is_null() ? "none" : Name(chat["file"]) + ": " + names);
}

std::string TextOf(const Json& model) {
  ModelReport report;
  report.Line("model", Name(model["model"]));
  report.Line("architecture", Name(model["architecture"]) + " (" + Name(model["model_type"]) + ")");
  if (model.contains("layers")) AddModel(model, &report);
  AddFiles(model, &report);
  if (model.contains("memory")) AddMemory(model["memory"], &report);
  for (const Json& note : model["notes"]) report.Line("note", Name(note));
  for (const Json& problem : model["problems"]) report.Line("not supported", Name(problem));
  return report.text();
}

void Inspect(const InspectFlags& flags) {
  const uint64_t memory = flags.memory.empty() ? 0 : ReadMemory(flags.memory);
  const Json model = Json::parse(InspectModel(flags.model, memory));
  if (memory != 0 && !model.contains("memory")) {
    const Json& problems = model["problems"];
    throw Error(FD_INVALID_ARGUMENT, "--memory: the model's size is not known: " +
                                         (problems.empty() ? std::string("no reason is given") : Name(problems[0])));
  }
  WriteOut(flags.json ? model.dump(2) + "\n" : TextOf(model));
}

}  // namespace

void AddInspect(CLI::App& program) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = program.add_subcommand("inspect", "Say what a model's folder holds, and what fits into a memory");
  command->add_option("-m,--model", flags->model, "the folder of a model; no weights are read")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--memory", flags->memory,
                   "say how many tokens fit: 0.95 of it, less the weights in 16 bits, is for KV; 40GB, 40GiB, or 40, "
                   "which is GiB")
      ->type_name("SIZE");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags] { Inspect(*flags); });
}

}  // namespace fastdecode
