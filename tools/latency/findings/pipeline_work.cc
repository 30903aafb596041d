#include "tools/latency/findings/pipeline_work.h"

#include <algorithm>

namespace fastdecode {

namespace {

bool IsPipelineWork(uint8_t kind, bool stages) {
  return kind == FD_RECORD_COMPOSE || kind == FD_RECORD_ROSTERS || (kind == FD_RECORD_STAGE && stages) ||
         kind == FD_RECORD_POST || kind == FD_RECORD_FINISH;
}

}  // namespace

PipelineWork::PipelineWork(const std::vector<fd_record_event>& events, bool stages) {
  uint64_t sum_ns = 0;
  for (const fd_record_event& event : events) {
    if (!IsPipelineWork(event.kind, stages)) continue;
    const uint64_t until_ns = spans_.empty() ? 0 : spans_.back().end_ns;
    const uint64_t start_ns = std::max(event.start_ns, until_ns);
    if (start_ns >= event.end_ns) continue;
    if (spans_.empty() || start_ns > until_ns) spans_.push_back({start_ns, start_ns, sum_ns});
    spans_.back().end_ns = event.end_ns;
    sum_ns += event.end_ns - start_ns;
  }
}

const PipelineWork::Span* PipelineWork::LastBefore(uint64_t at_ns) const {
  const auto next =
      std::partition_point(spans_.begin(), spans_.end(), [at_ns](const Span& span) { return span.start_ns < at_ns; });
  return next == spans_.begin() ? nullptr : &*(next - 1);
}

uint64_t PipelineWork::Until(uint64_t at_ns) const {
  const Span* span = LastBefore(at_ns);
  return span == nullptr ? 0 : span->before_ns + std::min(at_ns, span->end_ns) - span->start_ns;
}

uint64_t PipelineWork::FreeFrom(uint64_t at_ns) const {
  const Span* span = LastBefore(at_ns);
  return span == nullptr ? at_ns : std::max(at_ns, span->end_ns);
}

}  // namespace fastdecode
