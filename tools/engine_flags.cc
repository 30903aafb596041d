#include "tools/engine_flags.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "tools/option_values.h"

namespace fastdecode {

namespace {

void LogToStderr(void*, int level, const char* message) {
  static const char* const kLevels[] = {"debug: ", "", "warning: ", "error: "};
  std::fprintf(stderr, "fastdecode: %s%s\n", kLevels[level], message);
}

// What llama.cpp and vLLM call the same.
std::string FlagNames(const std::string& name) {
  if (name == "model") return "-m,--model";
  if (name == "max-context") return "-c,--max-context,--ctx-size,--max-model-len";
  if (name == "max-sequences") return "--max-sequences,--max-num-seqs";
  return "--" + name;
}

}  // namespace

std::vector<std::string> EngineFlagNames() {
  std::vector<std::string> names;
  fd_option_info info;
  info.struct_size = sizeof(info);
  for (size_t i = 0; fd_option_at(i, &info) == 1; ++i) {
    const std::string name = info.name;
    if (name != "listen" && name != "peers" && name != "grace-s") names.push_back(name);
  }
  return names;
}

std::vector<std::string> WorkerFlagNames() {
  return {"listen",    "peers",    "secret-file",   "model",         "r-cores",        "r-threads",
          "grace-s",   "kv-gib",   "isa",           "poll",          "rdma-device",    "rdma-port",
          "gid-index", "rdma-mtu", "traffic-class", "service-level", "peer-timeout-ms"};
}

EngineFlags::EngineFlags(CLI::App* command, const std::vector<std::string>& names, const std::vector<FlagHelp>& helps) {
  fd_option_info info;
  info.struct_size = sizeof(info);
  for (size_t i = 0; fd_option_at(i, &info) == 1; ++i) {
    const std::string name = info.name;
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const auto own = std::find_if(helps.begin(), helps.end(), [&](const FlagHelp& h) { return name == h.name; });
    values_[name] = info.default_value;
    value_names_[name] = info.value_name;
    std::string help = own == helps.end() ? info.help : own->help;
    if (own == helps.end() && *info.default_value != 0) help += std::string(" [") + info.default_value + "]";
    CLI::Option* flag = command->add_option(FlagNames(name), values_[name], help);
    flag->type_name(info.value_name)->group("Engine");
    if (std::string(info.value_name) == "BOOL") flag->expected(0, 1);  // alone: true
    flags_[name] = flag;
  }
  CLI::Option* verbose = command->add_flag("-v,--verbose", verbose_, "say more on stderr")->group("Engine");
  command->add_flag("-q,--quiet", quiet_, "say only warnings and errors on stderr")->group("Engine")->excludes(verbose);
}

bool EngineFlags::Given(const std::string& name) const { return flags_.at(name)->count() > 0; }

void EngineFlags::SetDefault(const std::string& name, const std::string& value) {
  if (!Given(name)) values_[name] = value;
}

void EngineFlags::ForEachValue(
    const std::function<void(const std::string& name, const std::string& value)>& take) const {
  for (const auto& [name, value] : values_) {
    const bool alone = Given(name) && value.empty() && flags_.at(name)->get_expected_min() == 0;  // a bare BOOL
    if (Given(name) || !value.empty()) take(name, alone ? "true" : value);
  }
}

// What a value that the library refuses may have been meant to be.
std::string EngineFlags::Hint(const std::string& name, const std::string& value) const {
  const std::string& type = value_names_.at(name);
  const bool is_number =
      type == "N" || type == "TOKENS" || type == "GIB" || type == "MS" || type == "BYTES" || type == "K";
  constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"bfloat16", "bf16"}, {"float16", "fp16"}, {"half", "fp16"}, {"f16", "fp16"},  {"float32", "f32"},
      {"float", "f32"},     {"fp32", "f32"},     {"fp8", "int8"},  {"q8_0", "int8"}, {"fp8_e5m2", "int8"},
      {"fp8_e4m3", "int8"}, {"q4_0", "int4"},    {"q4_1", "int4"}, {"gpu", "cuda"}};
  for (const auto& [other, ours] : kOtherNames) {
    if ((type == "TYPE" || type == "BACKEND") && value == other) return "; give " + std::string(ours);
  }
  if (!is_number) return "";
  const std::vector<std::string> undecided = {"auto", "default", "max", "none", "-1", "-2"};
  if (std::find(undecided.begin(), undecided.end(), value) != undecided.end()) {
    return "; leave --" + name + " out to have it chosen";
  }
  if (type == "GIB") return GibHint(value);
  return type == "MS" ? MillisecondsHint(value) : NumberHint(value, /*whole=*/true);
}

std::unique_ptr<EngineOptions> EngineFlags::Build() const {
  auto options = std::make_unique<EngineOptions>();
  ForEachValue([&](const std::string& name, const std::string& value) {
    try {
      options->Set(name, value);
    } catch (const Error& error) {
      throw Error(error.code(), error.what() + Hint(name, value));
    }
  });
  options->SetLog(&LogToStderr, nullptr, log_level());
  return options;
}

}  // namespace fastdecode
