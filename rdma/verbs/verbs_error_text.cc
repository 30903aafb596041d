#include "rdma/verbs/verbs_error_text.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/topology.h"
#include "rdma/verbs/verbs_wire.h"

namespace fastdecode {

namespace {

struct Meaning {
  const char* name;
  const char* advice;
};

constexpr char kBug[] = "an error of this program; please report it";
constexpr char kAdapter[] = "the adapter or its driver failed: see the kernel's log";

Meaning MeaningOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return {"success", ""};
    case IBV_WC_RETRY_EXC_ERR:
      return {"transport retry counter exceeded",
              "the peer's host does not acknowledge: is it up, its port and the route to its GID, and does a firewall "
              "let UDP port 4791 pass?"};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {"receiver-not-ready retry counter exceeded", "the peer had no receive posted: the versions may differ"};
    case IBV_WC_WR_FLUSH_ERR:
      return {"work request flushed",
              "the queue pair had failed before; the peer may have broken the protocol or its memory's bounds"};
    case IBV_WC_REM_ACCESS_ERR:
      return {"remote access error", "the peer's memory is not, or no more, where it said: did it restart?"};
    case IBV_WC_REM_INV_REQ_ERR:
      return {"remote invalid request", "the peer's adapter refused a write: the versions may differ"};
    case IBV_WC_REM_OP_ERR:
      return {"remote operation error", "the peer's adapter failed: see the kernel's log on its host"};
    case IBV_WC_LOC_PROT_ERR:
      return {"local protection error", kBug};
    case IBV_WC_LOC_LEN_ERR:
      return {"local length error", kBug};
    case IBV_WC_LOC_QP_OP_ERR:
      return {"local queue pair operation error", kBug};
    case IBV_WC_LOC_ACCESS_ERR:
      return {"local access error", kBug};
    case IBV_WC_FATAL_ERR:
      return {"fatal error", kAdapter};
    case IBV_WC_GENERAL_ERR:
      return {"general error", kAdapter};
    case IBV_WC_RESP_TIMEOUT_ERR:
      return {"response timeout", kAdapter};
    case IBV_WC_BAD_RESP_ERR:
      return {"bad response", "the peer's adapter answered nonsense: do drivers and firmware of both ends fit?"};
    case IBV_WC_REM_ABORT_ERR:
      return {"remote aborted", "the peer's adapter gave the operation up"};
    default:
      return {"unexpected status", kAdapter};
  }
}

const char* NameOf(MessageKind kind) {
  switch (kind) {
    case MessageKind::kHop:
      return "a hop";
    case MessageKind::kReply:
      return "a reply";
    case MessageKind::kControl:
      return "a control message";
    case MessageKind::kRing:
      return "a wake-up";
    case MessageKind::kCredit:
      return "a credit";
    case MessageKind::kBulk:
      return "a bulk segment";
    case MessageKind::kNone:
      break;
  }
  return "a receive";
}

std::string Fatal(const char* name, const char* advice) {
  return absl::StrFormat("asynchronous event %s: %s", name, advice);
}

}  // namespace

std::string DescribeCompletionError(const ibv_wc& completion) {
  const Meaning meaning = MeaningOf(completion.status);
  return absl::StrFormat("%s (status %d, vendor 0x%x) of %s: %s", meaning.name, int{completion.status},
                         completion.vendor_err, NameOf(WrId::FromBits(completion.wr_id).kind()), meaning.advice);
}

std::string DescribeFatalEvent(const ibv_async_event& event, int port) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
      return Fatal("QP_FATAL", kAdapter);
    case IBV_EVENT_QP_REQ_ERR:
      return Fatal("QP_REQ_ERR", "the peer sent a request that this adapter refused: the versions may differ");
    case IBV_EVENT_QP_ACCESS_ERR:
      return Fatal("QP_ACCESS_ERR", "the peer wrote outside the memory that it may write");
    case IBV_EVENT_CQ_ERR:
      return Fatal("CQ_ERR", "the completion queue overran or failed; please report it");
    case IBV_EVENT_PATH_MIG_ERR:
      return Fatal("PATH_MIG_ERR", "the path to the peer failed");
    case IBV_EVENT_DEVICE_FATAL:
      return Fatal("DEVICE_FATAL", kAdapter);
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num != port) return "";
      return Fatal("PORT_ERR", "the port went down: is the cable in, and the network interface up (`rdma link`)?");
    case IBV_EVENT_LID_CHANGE:
      if (event.element.port_num != port) return "";
      return Fatal("LID_CHANGE", "the subnet manager gave the port another address; a new link will use it");
    default:  // a GID that was added or went: if it was ours, the transport says so soon
      return "";
  }
}

std::string LockedMemoryAdvice() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return "locked memory is unlimited, so the device or the host is out of memory";
  return absl::StrCat("this process may lock ", FormatBytes(limit.rlim_cur),
                      " of memory; raise it with `ulimit -l unlimited` or, in a service, LimitMEMLOCK=infinity");
}

}  // namespace fastdecode
