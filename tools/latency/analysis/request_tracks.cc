#include "tools/latency/analysis/request_tracks.h"

namespace fastdecode {

namespace {

// Tokens come in order. What comes out of it is not trusted with an index.
void AddToken(uint32_t number, uint64_t at_ns, std::vector<uint64_t>* tokens, bool* torn) {
  if (number == tokens->size()) {
    tokens->push_back(at_ns);
  } else {
    *torn = true;
  }
}

void AddEvent(const fd_record_event& event, RequestTrack* track) {
  switch (event.kind) {
    case FD_RECORD_SUBMIT:
      track->started = true;
      track->submit_ns = event.start_ns;
      break;
    case FD_RECORD_JOIN:
      if (event.part != 0) break;  // it comes back after a preemption, or from another micro-batch: it keeps its start
      track->started = true;
      track->submit_ns = event.start_ns;
      break;
    case FD_RECORD_TOKEN:
      AddToken(event.count, event.end_ns, &track->step_ns, &track->torn);
      track->step_gaps.Add(event.count, event.end_ns);
      break;
    case FD_RECORD_DELIVER:
      AddToken(event.count, event.end_ns, &track->taken_ns, &track->deliveries_torn);
      track->taken_gaps.Add(event.count, event.end_ns);
      break;
    case FD_RECORD_LEAVE:
      if (GoesOn(event.part)) break;
      track->end = event.part;
      track->end_ns = event.end_ns;
      track->generated = event.count;
      break;
  }
}

bool OfRequest(const fd_record_event& event) {
  return event.kind == FD_RECORD_SUBMIT || event.kind == FD_RECORD_JOIN || event.kind == FD_RECORD_TOKEN ||
         event.kind == FD_RECORD_DELIVER || event.kind == FD_RECORD_LEAVE;
}

}  // namespace

void TokenGaps::Add(uint32_t number, uint64_t at_ns) {
  if (last && number == *last + 1 && at_ns >= last_ns) gaps.push_back({at_ns, at_ns - last_ns});
  last = number;
  last_ns = at_ns;
}

bool RequestTrack::Answered() const {
  const bool by_rule = end == FD_LEAVE_FINISHED || end == FD_LEAVE_STOPPED;
  return started && by_rule && !torn && !step_ns.empty() && step_ns.size() >= generated;
}

std::optional<uint64_t> RequestTrack::FirstTokenNs() const {
  if (!taken_ns.empty()) return taken_ns.front();
  if (!step_ns.empty()) return step_ns.front();
  return std::nullopt;
}

const std::vector<uint64_t>& RequestTrack::TokenNs() const {
  const bool stopped = end == FD_LEAVE_STOPPED && !taken_ns.empty() && !deliveries_torn;
  return stopped || taken_ns.size() == step_ns.size() ? taken_ns : step_ns;
}

std::optional<uint64_t> RequestTrack::WaitNs(uint64_t recorded_until_ns) const {
  const TokenGaps& gaps = OfGaps();
  if (end || !gaps.last || gaps.last_ns >= recorded_until_ns) return std::nullopt;
  return recorded_until_ns - gaps.last_ns;
}

std::map<uint64_t, RequestTrack> CollectTracks(const std::vector<fd_record_event>& events) {
  std::map<uint64_t, RequestTrack> tracks;
  for (const fd_record_event& event : events) {
    if (OfRequest(event)) AddEvent(event, &tracks[event.id]);
  }
  return tracks;
}

}  // namespace fastdecode
