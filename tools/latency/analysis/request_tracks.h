#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_REQUEST_TRACKS_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_REQUEST_TRACKS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <fastdecode/fastdecode.h>

namespace fastdecode {

// Between tokens that follow each other, wherever in the request the recording began.
struct TokenGaps {
  struct Gap {
    uint64_t end_ns = 0, ns = 0;
  };
  std::optional<uint32_t> last;  // token
  uint64_t last_ns = 0;
  std::vector<Gap> gaps;

  void Add(uint32_t number, uint64_t at_ns);
};

// Whether a request goes on behind a FD_RECORD_LEAVE of this kind (fd_record_leave).
inline bool GoesOn(uint16_t leave) {
  return leave == FD_LEAVE_PREEMPTED || leave == FD_LEAVE_MOVED || leave == FD_LEAVE_HOME_LOST;
}

// What was recorded of one request.
struct RequestTrack {
  bool started = false;  // its submission was recorded, or its joining for the first time
  uint64_t submit_ns = 0;
  std::vector<uint64_t> step_ns;   // [token] end of its step
  std::vector<uint64_t> taken_ns;  // [token] from when a caller could take it
  TokenGaps step_gaps, taken_gaps;
  bool torn = false;             // a token is missing, or its start
  bool deliveries_torn = false;  // the same of deliveries
  std::optional<uint16_t> end;   // fd_record_leave, of those behind which it does not go on
  uint64_t end_ns = 0;
  uint32_t generated = 0;  // as its end says

  // A rule of the engine ended it (stop token, stop string, length), and it was recorded from its start.
  bool Answered() const;
  // It was recorded from its start, and had not ended when the recording did or its caller gave it up.
  bool Unfinished() const { return started && (!end || end == FD_LEAVE_CANCELLED); }
  // Of its start alone; nothing: there was none yet, or it was overwritten.
  std::optional<uint64_t> FirstTokenNs() const;
  // It was seen without a token until its end, or the recording's.
  bool NoToken() const { return !step_gaps.last && !taken_gaps.last; }
  // Deliveries, if there are those of all tokens: never a mixture, whose gaps would be of neither. Where a stop string
  // ended it, those that there are: of the tokens behind it nobody hears. REQUIRES: Answered().
  const std::vector<uint64_t>& TokenNs() const;
  const std::vector<TokenGaps::Gap>& Gaps() const { return OfGaps().gaps; }
  // How long its next token has been waited for, at the recording's end. Nothing: it had none before, or waits for
  // none.
  std::optional<uint64_t> WaitNs(uint64_t recorded_until_ns) const;

 private:
  const TokenGaps& OfGaps() const {
    return taken_gaps.gaps.size() >= step_gaps.gaps.size() && taken_gaps.last ? taken_gaps : step_gaps;
  }
};

// By id, so that figures do not depend on how a map hashes. `events`: ascending by end_ns.
std::map<uint64_t, RequestTrack> CollectTracks(const std::vector<fd_record_event>& events);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_REQUEST_TRACKS_H_
