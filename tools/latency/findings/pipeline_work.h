#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_PIPELINE_WORK_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_PIPELINE_WORK_H_

#include <cstdint>
#include <vector>

#include <fastdecode/fastdecode.h>

namespace fastdecode {

// When the pipeline thread was at work, and when it had nothing to do but to look for replies.
// Thread: immutable. Bounded: by its recording.
class PipelineWork {
 public:
  // events: ascending by end_ns. stages: whether these are its work, and not a GPU's.
  PipelineWork(const std::vector<fd_record_event>& events, bool stages);

  // ns of work.
  uint64_t WorkBetween(uint64_t from_ns, uint64_t to_ns) const { return Until(to_ns) - Until(from_ns); }
  // The first moment from at_ns on at which it is at no work that it had begun before.
  uint64_t FreeFrom(uint64_t at_ns) const;

 private:
  struct Span {
    uint64_t start_ns, end_ns, before_ns;  // before: the sum of those before
  };
  // The last that began before at_ns, or none.
  const Span* LastBefore(uint64_t at_ns) const;
  uint64_t Until(uint64_t at_ns) const;

  std::vector<Span> spans_;  // ascending, with nothing done in between
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_PIPELINE_WORK_H_
