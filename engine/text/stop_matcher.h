#ifndef FASTDECODE_ENGINE_TEXT_STOP_MATCHER_H_
#define FASTDECODE_ENGINE_TEXT_STOP_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace fastdecode {

// Where a stop string ended the text.
struct StopMatch {
  size_t stop_index;     // into the stop strings as given
  uint64_t begin_bytes;  // of the match, counted from the start of the text
  uint64_t end_bytes;
};

// Watches a text that comes in pieces for the first stop string to be completed; of several that end there, the
// longest. Text that may still turn out to be the start of a stop string is held back. What comes out in total, and the
// match, do not depend on where the pieces were cut.
//
// Thread: one caller at a time. Bounded: memory by the stop strings (an Aho-Corasick automaton); it holds back less
// than the longest of them.
class StopMatcher {
 public:
  static constexpr size_t kStopBytesMax = 64 * 1024;  // of all stop strings together

  // `include_stop`: the stop string itself is part of what comes out.
  // Errors: InvalidArgument for a stop string that is empty, not UTF-8, or too long in all.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops, bool include_stop);

  // Takes the next piece and returns the text that may go out. After a match: nothing more, whatever is fed.
  // If pieces are whole characters, so is what comes out.
  std::string Feed(std::string_view piece);
  // Whether Feed of the same piece would complete a stop string.
  bool WouldMatch(std::string_view piece) const;
  // The end of the text: returns what was held back.
  std::string Finish();

  const std::optional<StopMatch>& match() const { return match_; }

 private:
  struct Node {
    uint32_t depth = 0;   // bytes from the root: how much of a stop string has been seen
    uint32_t suffix = 0;  // the node of the longest proper suffix of these bytes
    int32_t stop = -1;    // the longest stop string that ends here, if any
  };

  StopMatcher(std::vector<std::string> stops, bool include_stop);
  void BuildNodes();
  void LinkSuffixes(const std::vector<std::vector<std::pair<uint8_t, uint32_t>>>& children);
  uint32_t Advance(uint32_t node, uint8_t byte) const;

  std::vector<std::string> stops_;
  bool include_stop_;
  std::vector<Node> nodes_;                           // the root first
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // by (node << 8 | byte)

  uint32_t node_ = 0;
  std::string held_;         // the last nodes_[node_].depth bytes fed, not given out yet
  uint64_t seen_bytes_ = 0;  // fed so far
  std::optional<StopMatch> match_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_STOP_MATCHER_H_
