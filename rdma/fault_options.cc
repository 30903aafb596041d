#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rdma/fault_link.h"

namespace fastdecode {

namespace {

absl::Status BadFault(const std::string& option, const std::string& part, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": '", part, "': ", why));
}

bool ParseShare(const std::string& text, double* share) {
  return absl::SimpleAtod(text, share) && *share >= 0 && *share <= 1;
}

// "200us" or "50polls".
bool ParseDelay(const std::string& text, FaultOptions* options) {
  const size_t unit_at = text.find_first_not_of("0123456789");
  if (unit_at == std::string::npos) return false;
  const std::string unit = text.substr(unit_at);
  uint32_t amount;
  if (!absl::SimpleAtoi(text.substr(0, unit_at), &amount)) return false;
  if (unit == "polls") {
    options->delay_polls = amount;
    return true;
  }
  static const std::map<std::string, uint64_t> kUnitsNs = {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}};
  const auto found = kUnitsNs.find(unit);
  if (found == kUnitsNs.end()) return false;
  options->delay_ns = amount * found->second;
  return true;
}

double* ShareField(const std::string& key, FaultOptions* options) {
  if (key == "reorder") return &options->reorder_share;
  if (key == "drop") return &options->drop_hop_share;
  if (key == "drop-reply") return &options->drop_reply_share;
  if (key == "duplicate") return &options->duplicate_share;
  if (key == "corrupt") return &options->corrupt_hop_share;
  if (key == "corrupt-reply") return &options->corrupt_reply_share;
  if (key == "corrupt-payload") return &options->corrupt_payload_share;
  if (key == "cut-share") return &options->cut_share;
  return nullptr;
}

}  // namespace

absl::StatusOr<FaultOptions> ParseFaultOptions(const std::string& option, const std::string& text) {
  FaultOptions options;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "seed") {
      if (!absl::SimpleAtoi(value, &options.seed)) return BadFault(option, part, "seed takes a number");
    } else if (key == "cut") {
      if (!absl::SimpleAtoi(value, &options.cut_after_hops) || options.cut_after_hops == 0) {
        return BadFault(option, part, "cut takes a number of hops, from 1");
      }
    } else if (key == "delay") {
      const size_t colon = value.find(':');
      if (colon == std::string::npos || !ParseShare(value.substr(0, colon), &options.delay_share) ||
          !ParseDelay(value.substr(colon + 1), &options)) {
        return BadFault(option, part, "delay takes SHARE:DURATION, as 0.01:200us (ns, us, ms or polls)");
      }
    } else if (double* const share = ShareField(key, &options); share == nullptr) {
      return BadFault(
          option, part,
          "is none of seed, delay, reorder, drop, drop-reply, duplicate, corrupt, corrupt-reply, corrupt-payload, cut, "
          "cut-share");
    } else if (!ParseShare(value, share)) {
      return BadFault(option, part, absl::StrCat(key, " takes a share from 0 to 1"));
    }
  }
  return options;
}

}  // namespace fastdecode
