#include "tools/doctor/traffic.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/doctor/host_facts.h"

namespace fastdecode {

namespace {

constexpr int kPriorities = 8;
constexpr char kLoss[] = "look for drops: PFC or ECN on NICs and switches, `ethtool -S`, cables";
constexpr char kCongestion[] = "senders are slowed down; look at what else uses these ports and switches";
constexpr char kReceiver[] = "FastDecode always has receives posted: was it another program? Else report it";

// A counter that stands still as long as all is well.
struct TroubleCounter {
  const char* name;
  const char* meaning;
  const char* advice;
};
constexpr TroubleCounter kTroubleCounters[] = {
    // NICs.
    {"out_of_sequence", "packets that came out of order: some were lost or took another path", kLoss},
    {"packet_seq_err", "peers reported a gap: packets from here were lost on the way", kLoss},
    {"local_ack_timeout_err", "acknowledgements that did not come in time; the packets were sent again", kLoss},
    {"implied_nak_seq_err", "answers that skipped a request: packets were lost", kLoss},
    {"rnr_nak_retry_err", "peers were not ready to receive", kReceiver},
    {"out_of_buffer", "packets for which no receive was posted here", kReceiver},
    {"np_cnp_sent", "congestion: packets marked by switches came in, and their senders were told", kCongestion},
    {"rp_cnp_handled", "congestion: peers told this host to send slower", kCongestion},
    // Soft-RoCE.
    {"out_of_seq_request", "requests that came out of order: some were lost", kLoss},
    {"rcvd_seq_err", "peers reported a gap: packets from here were lost on the way", kLoss},
    {"completer_retry_err", "sends that were repeated", kLoss},
    {"retry_exceeded_err", "connections that broke as a peer did not answer", kLoss},
    {"rcvd_rnr_err", "peers were not ready to receive", kReceiver},
    {"send_rnr_err", "packets for which no receive was posted here", kReceiver},
};

// The priorities for which a file of `folder` says 1, as "3, 4"; nothing if none can be read.
std::optional<std::string> ReadPriorities(const SysRoot& root, const std::string& folder) {
  std::string on;
  bool readable = false;
  for (int priority = 0; priority < kPriorities; ++priority) {
    const std::optional<int64_t> value = root.Number(absl::StrCat(folder, "/", priority));
    readable |= value.has_value();
    if (value == 1) absl::StrAppend(&on, on.empty() ? "" : ", ", priority);
  }
  return readable ? std::optional<std::string>(on) : std::nullopt;
}

void ExamineEcn(const SysRoot& root, const std::string& port, const std::string& interface, CheckList* list) {
  const std::string name = absl::StrCat(port, " ECN");
  const std::string folder = absl::StrCat("/sys/class/net/", interface, "/ecn/");
  const std::optional<std::string> receiver = ReadPriorities(root, folder + "roce_np/enable");
  const std::optional<std::string> sender = ReadPriorities(root, folder + "roce_rp/enable");
  if (!receiver || !sender) {
    list->Unknown(name, kNotReadable,
                  "the driver does not show it: ask the vendor's tool, or see whether np_cnp_sent grows under load");
    return;
  }
  const auto priorities = [](const std::string& on) { return on.empty() ? "off" : absl::StrCat("priority ", on); };
  const std::string found = absl::StrCat("as receiver: ", priorities(*receiver), "; as sender: ", priorities(*sender));
  if (!receiver->empty() && !sender->empty()) {
    list->Ok(name, found);
    return;
  }
  list->Warning(name, found,
                absl::StrCat("where switches may drop packets: `echo 1 > ", folder,
                             "roce_np/enable/PRIORITY`, the same "
                             "for roce_rp"));
}

void ExamineCounters(const SysRoot& root, const RdmaDevice& device, const RdmaPort& port, CheckList* list) {
  const std::string port_name = absl::StrCat(device.name, "/", port.number);
  const std::string folder = absl::StrCat(device.path, "/ports/", port.number, "/hw_counters/");
  int read = 0, counted = 0;
  for (const TroubleCounter& counter : kTroubleCounters) {
    const std::optional<int64_t> value = root.Number(folder + counter.name);
    if (!value) continue;
    ++read;
    if (*value == 0) continue;
    ++counted;
    list->Warning(absl::StrCat(port_name, " ", counter.name),
                  absl::StrCat(*value, " since the device was made: ", counter.meaning), counter.advice);
  }
  const std::string name = absl::StrCat(port_name, " counters");
  if (read == 0) {
    list->Unknown(name, kNotReadable, absl::StrCat("`rdma statistic show link ", port_name, "` may show them"));
  } else if (counted == 0) {
    list->Ok(name, absl::StrCat("none of the ", read, " that tell trouble has counted"));
  }
}

}  // namespace

void ExamineTraffic(const SysRoot& root, const RdmaDevice& device, const RdmaPort& port, const std::string& interface,
                    CheckList* list) {
  // Soft-RoCE heeds neither ECN nor PFC.
  if (port.ethernet() && !device.software) {
    const std::string name = absl::StrCat(device.name, "/", port.number);
    ExamineEcn(root, name, interface, list);
    list->Unknown(absl::StrCat(name, " PFC"), kNotReadable,
                  absl::StrCat("no file says it: `dcb pfc show dev ", interface.empty() ? "IF" : interface,
                               "`; the same priorities on all hosts and switches, or none anywhere"));
  }
  ExamineCounters(root, device, port, list);
}

}  // namespace fastdecode
