// fastdecode latency compare: what became slower between two saved results.
#include "tools/latency/compare_command.h"

#include <memory>
#include <optional>
#include <string>

#include <fastdecode/fastdecode.hpp>
#include "tools/bench/summary.h"
#include "tools/exit_code.h"
#include "tools/latency/analysis/compare.h"
#include "tools/latency/export/saved_result.h"
#include "tools/latency/text/units.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

struct CompareFlags {
  std::string a, b;
  std::string threshold = "5%";
  CompareOptions options;
  int columns = 0;
  bool json = false;
};

void LatencyCompare(CompareFlags& flags) {
  const std::optional<double> threshold = ParsePercentage(flags.threshold);
  if (!threshold) {
    throw Error(FD_INVALID_ARGUMENT, "--threshold: '" + flags.threshold + "' is no percentage such as 5%");
  }
  flags.options.threshold = *threshold;
  const absl::StatusOr<SavedResult> a = ReadSavedResult(flags.a);
  ThrowUnlessOk(a.status());
  const absl::StatusOr<SavedResult> b = ReadSavedResult(flags.b);
  ThrowUnlessOk(b.status());
  const absl::StatusOr<Comparison> comparison = Compare(*a, *b, flags.options);
  ThrowUnlessOk(comparison.status(), flags.a + ", " + flags.b + ": ");
  const size_t width = static_cast<size_t>(flags.columns > 0 ? flags.columns : TerminalColumns());
  WriteOut(flags.json ? ToLine(ToJson(*comparison, flags.options))
                      : "fastdecode latency compare\n  A: " + flags.a + "\n  B: " + flags.b + "\n\n" +
                            FormatComparison(*comparison, flags.options, width));
  if (comparison->failed() || !comparison->judged()) throw ExitCode(ExitCode::kVerdictNo);
}

}  // namespace

void AddLatencyCompare(CLI::App* latency) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command = latency->add_subcommand(
      "compare",
      "Two saved results (--save FILE.json): what became slower or faster, and whether that may be chance. "
      "Exit code 2 if B is slower, or they have too few samples to tell");
  command->add_option("A", flags->a, "what was before")->required()->type_name("FILE");
  command->add_option("B", flags->b, "what is now")->required()->type_name("FILE");
  command
      ->add_option(
          "--threshold", flags->threshold,
          "B is slower if requests, tokens or steps take longer by more than this, the interval's lower end too")
      ->type_name("PERCENT")
      ->capture_default_str();
  command->add_flag("--phases-count", flags->options.phases_count, "a slower phase makes B slower too");
  command->add_option("--confidence", flags->options.confidence, "of the intervals")
      ->transform(Number(0.5, 0.999))
      ->type_name("SHARE")
      ->capture_default_str();
  command->add_option("--resamples", flags->options.resamples, "of both runs, that the intervals are made of")
      ->transform(Number(100, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "of the resamples; equal seeds give equal intervals")
      ->transform(AnyNumber<uint64_t>())
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--columns", flags->columns, "width of the text (0: the terminal's)")
      ->transform(Number(0, 1000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  command->callback([flags] { LatencyCompare(*flags); });
}

}  // namespace fastdecode
