#include "tools/prompts.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <limits>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tools/option_values.h"
#include "tools/read_file.h"

namespace fastdecode {

namespace {

// Editors of other systems begin a text with this mark, which is no part of it, and end its lines with "\r\n".
std::string WithoutByteOrderMark(std::string text) {
  return text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : std::move(text);
}

std::string WithoutLast(char c, std::string text) {
  if (!text.empty() && text.back() == c) text.pop_back();
  return text;
}

// The last newline of a file belongs to the editor and to `echo`, not to the prompt.
std::string ReadPrompt(const std::string& path) {
  std::string text = WithoutByteOrderMark(ReadFile(path));
  if (text.ends_with('\n')) text = WithoutLast('\r', WithoutLast('\n', std::move(text)));
  if (!text.empty() || path != "-") return text;
  // It is mostly what a command that failed, or a variable that was not set, wrote into a pipe.
  throw Error(FD_INVALID_ARGUMENT, "--file: '-': standard input is empty; give --prompt '' for an answer to nothing");
}

std::vector<std::string> ReadLines(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream in(WithoutByteOrderMark(ReadFile(path)));
  for (std::string line; std::getline(in, line);) lines.push_back(in.eof() ? line : WithoutLast('\r', line));
  return lines;
}

std::vector<int32_t> ParseIds(const std::string& list) {
  std::vector<int32_t> ids;
  for (const std::string& item : SplitAtCommas(list)) {
    int32_t id = 0;
    const size_t first = item.find_first_not_of(' ');
    if (first == std::string::npos || !ParseNumber(item.substr(first), &id)) {
      throw Error(FD_INVALID_ARGUMENT,
                  "--prompt-ids: '" + item + "' is not a token id; give numbers such as 1,15043,29892");
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

void AddPromptFlags(CLI::App* command, PromptFlags& flags) {
  const char* group = "Prompts";
  command->add_option("-p,--prompt", flags.prompts, "text to go on from; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(group);
  command
      ->add_option("-f,--file", flags.files,
                   "a file that is one prompt, less its last newline (-: stdin); may be repeated")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->group(group);
  command->add_option("--prompts-file", flags.lines_file, "a file with one prompt a line (-: stdin)")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--prompt-ids", flags.ids, "token ids, used as they are, such as 1,15043; may be repeated")
      ->type_name("IDS")
      ->allow_extra_args(false)
      ->group(group);
  command->add_flag("--plain", flags.plain, "names of special tokens in prompts are text like any other")->group(group);
}

std::vector<GenerateRequest> ReadPrompts(const PromptFlags& flags) {
  std::vector<GenerateRequest> requests;
  for (const std::string& prompt : flags.prompts) requests.emplace_back(prompt);
  for (const std::string& file : flags.files) requests.emplace_back(ReadPrompt(file));
  if (!flags.lines_file.empty()) {
    for (std::string& line : ReadLines(flags.lines_file)) requests.emplace_back(std::move(line));
  }
  for (GenerateRequest& request : requests) {
    if (flags.plain) request.parts = {{request.prompt, /*special=*/false, {}}};
  }
  for (const std::string& ids : flags.ids) requests.emplace_back(ParseIds(ids));
  if (requests.empty() && !flags.lines_file.empty()) {
    throw Error(FD_INVALID_ARGUMENT, "--prompts-file: '" + flags.lines_file + "' has no line");
  }
  if (requests.empty()) {
    throw Error(FD_INVALID_ARGUMENT, "no prompt: give --prompt, --file, --prompts-file or --prompt-ids");
  }
  return requests;
}

namespace {

std::string ShortNumber(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

namespace {

constexpr char kSamplingGroup[] = "Sampling";

// An option that is a number.
template <class Number>
CLI::Option* AddNumber(CLI::App* command, const char* names, Number& value, const std::string& help, const char* type) {
  return command->add_option(names, value, help)
      ->transform(AnyNumber<Number>())
      ->type_name(type)
      ->group(kSamplingGroup);
}

// What a value is to be told that other programs have, and that is no value here.
CLI::Validator UnlessMeant(const std::vector<std::string>& values, const std::string& advice) {
  const auto check = [values, advice](std::string& text) {
    const bool is_meant = std::find(values.begin(), values.end(), text) != values.end();
    return is_meant ? "'" + text + "' is not a whole number from 0 on; " + advice : std::string();
  };
  return CLI::Validator(check, "");
}

// `unlimited`: what to give instead of llama.cpp's -1 and -2.
CLI::Option* AddMaxTokens(CLI::App* command, RequestFlags& flags, const std::string& help,
                          const std::string& unlimited) {
  return AddNumber(command, "-n,--max-tokens,--n-predict", flags.fields.max_tokens, help, "N")
      ->transform(UnlessMeant({"-1", "-2"}, unlimited));
}

CLI::Option* AddSeed(CLI::App* command, RequestFlags& flags, const std::string& help) {
  return AddNumber(command, "-s,--seed", flags.fields.seed, help, "N")
      ->transform(UnlessMeant({"-1", "random"}, "for a random seed give --seed $RANDOM"));
}

// What every command has that asks for answers.
void AddSampling(CLI::App* command, RequestFlags& flags) {
  fd_request& r = flags.fields;
  const char* group = kSamplingGroup;
  const auto add = [&](const char* names, auto& value, const std::string& help, const char* type) {
    return AddNumber(command, names, value, help, type);
  };
  // These come from the model's generation_config.json, if it has them.
  const auto add_recommended = [&](const char* names, auto& value, const std::string& help, const char* type) {
    return add(names, value, help + " [the model's, or " + ShortNumber(value) + "]", type);
  };
  add("--min-tokens", r.min_tokens, "no stop before so many; stop strings are looked for in the text after them", "N")
      ->capture_default_str();
  flags.temperature = add_recommended("--temperature,--temp", r.temperature, "0: always the most likely token", "T");
  flags.top_k = add_recommended("--top-k", r.top_k, "only the k most likely; 0: off", "K");
  flags.top_p = add_recommended("--top-p", r.top_p, "only the most likely that make up p; 1: off", "P");
  flags.min_p =
      add_recommended("--min-p", r.min_p, "only those at least so likely, relative to the most likely; 0: off", "P");
  flags.repetition_penalty = add_recommended("--repetition-penalty", r.repetition_penalty, "1: off", "X");
  add("--presence-penalty", r.presence_penalty, "0: off", "X")->capture_default_str();
  add("--frequency-penalty", r.frequency_penalty, "0: off", "X")->capture_default_str();
  command->add_option("--stop", flags.stop, "ends the text before this string; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(group);
  AddNumbers(command, "--stop-token-ids", flags.stop_token_ids, 0, std::numeric_limits<int32_t>::max(),
             "further tokens that end the text")
      ->type_name("ID")
      ->group(group);
  command
      ->add_option("--logit-bias", flags.logit_bias, "ID:BIAS, added to a token's logit; may be repeated, each ID once")
      ->type_name("ID:BIAS")
      ->allow_extra_args(false)
      ->group(group);
  command->add_flag("--ignore-eos", r.ignore_eos, "do not stop at the model's end tokens")->group(group);
  command->add_flag("--include-stop", r.include_stop, "the stop string is part of the text")->group(group);
  command->add_flag("--show-special", r.show_special, "special tokens are part of the text")->group(group);
}

}  // namespace

void AddRequestFlags(CLI::App* command, RequestFlags& flags) {
  fd_request& r = flags.fields;
  r.max_tokens = 128;
  AddMaxTokens(command, flags, "tokens to generate at most",
               "for an answer up to the end of the context give a large number, such as 1048576")
      ->capture_default_str();
  AddSampling(command, flags);
  AddNumber(command, "--choices", r.n, "answers to each prompt, which is computed once", "N")->capture_default_str();
  flags.seed =
      AddSeed(command, flags, "choice k of prompt i samples with seed + i * choices + k")->capture_default_str();
  AddNumber(command, "--logprobs", r.logprobs, "with --json: of each token and its n best alternatives; -1: off", "N")
      ->capture_default_str();
  command
      ->add_flag_callback(
          "--no-special-tokens", [&r] { r.add_special_tokens = 0; }, "do not add bos to the prompt")
      ->group(kSamplingGroup);
}

void AddChatRequestFlags(CLI::App* command, RequestFlags& flags) {
  flags.fields.max_tokens = std::numeric_limits<uint32_t>::max();
  AddMaxTokens(command, flags, "tokens of an answer at most [to the end of the context]",
               "leave it out for an answer up to the end of the context");
  AddSampling(command, flags);
  flags.seed = AddSeed(command, flags, "question i samples with seed + i [0, or the server's]");
}

namespace {

// A complaint about a field as one about its option, whose name differs in this alone, but for n; and which value is
// the one that was probably looked for.
std::string AboutOption(std::string message) {
  constexpr std::pair<std::string_view, std::string_view> kAdvice[] = {
      {"temperature: ", "; 0 always takes the most likely token, and 1 changes nothing"},
      {"top_k: ", "; 0 is off"},
      {"top_p: ", "; 1 is off, and --temperature 0 always takes the most likely token"},
      {"min_p: ", "; 0 is off"},
      {"repetition_penalty: ", "; 1 is off"},
      {"presence_penalty: ", "; 0 is off"},
      {"frequency_penalty: ", "; 0 is off"},
      {"logprobs: ", "; -1 is off"}};
  std::string_view fitting;
  for (const auto& [field, advice] : kAdvice) {
    if (message.starts_with(field)) fitting = advice;
  }
  if (message.starts_with("n: ")) return "--choices" + message.substr(1);
  std::replace(message.begin(), message.end(), '_', '-');
  return "--" + message + std::string(fitting);
}

// Other programs read escapes in their options. A letter behind one that looks so is more likely to be part of a word,
// as in C:\new.
void WarnOfEscapes(const std::string& option, const std::string& text) {
  for (size_t at = text.find('\\'); at != std::string::npos && at + 1 < text.size(); at = text.find('\\', at + 2)) {
    const char kind = text[at + 1];
    const bool in_word = at + 2 < text.size() && std::islower(static_cast<unsigned char>(text[at + 2])) != 0;
    if ((kind != 'n' && kind != 't' && kind != 'r') || in_word) continue;
    std::fprintf(stderr,
                 "fastdecode: warning: %s: '%s' has a backslash and the letter %c, not %s; bash writes that $'\\%c'\n",
                 option.c_str(), text.c_str(), kind,
                 kind == 'n'   ? "a newline"
                 : kind == 't' ? "a tab"
                               : "a carriage return",
                 kind);
    return;
  }
}

}  // namespace

void CheckRequestFlags(const RequestFlags& flags) {
  fd_request fields = flags.fields;
  std::vector<const char*> stop;
  for (const std::string& text : flags.stop) {
    stop.push_back(text.c_str());
    WarnOfEscapes("--stop", text);
  }
  fields.stop = stop.data();
  fields.stop_count = stop.size();
  const std::vector<fd_logit_bias> biases = ParseLogitBias(flags);
  fields.logit_bias = biases.data();
  fields.logit_bias_count = biases.size();
  if (fields.max_tokens == 0) throw Error(FD_INVALID_ARGUMENT, "--max-tokens: 0 is not at least 1");
  try {
    ThrowIfError(fd_request_check(&fields));
  } catch (const Error& error) {
    throw Error(error.code(), AboutOption(error.what()));
  }
}

std::vector<fd_logit_bias> ParseLogitBias(const RequestFlags& flags) {
  std::vector<fd_logit_bias> biases;
  for (const std::string& text : flags.logit_bias) {
    const size_t colon = text.find(':');
    fd_logit_bias bias{};
    if (colon == std::string::npos || !ParseNumber(text.substr(0, colon), &bias.token) ||
        !ParseNumber(text.substr(colon + 1), &bias.bias)) {
      throw Error(FD_INVALID_ARGUMENT, "--logit-bias: '" + text + "' is not ID:BIAS, such as 15043:-2.5");
    }
    biases.push_back(bias);
  }
  return biases;
}

void ApplyRequestFlags(const RequestFlags& flags, GenerateRequest& request) {
  request.fields = flags.fields;
  request.stop = flags.stop;
  request.stop_token_ids = flags.stop_token_ids;
  request.logit_bias = ParseLogitBias(flags);
}

void ApplyDefaultSampling(const InferenceEngine& engine, const RequestFlags& flags, GenerateRequest& request) {
  engine.SetDefaultSampling(&request);
  const auto given = [](const CLI::Option* flag) { return flag != nullptr && flag->count() > 0; };
  if (given(flags.temperature)) request.fields.temperature = flags.fields.temperature;
  if (given(flags.top_k)) request.fields.top_k = flags.fields.top_k;
  if (given(flags.top_p)) request.fields.top_p = flags.fields.top_p;
  if (given(flags.min_p)) request.fields.min_p = flags.fields.min_p;
  if (given(flags.repetition_penalty)) request.fields.repetition_penalty = flags.fields.repetition_penalty;
}

}  // namespace fastdecode
