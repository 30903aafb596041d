#include "engine/text/stop_matcher.h"

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "engine/text/utf8.h"

namespace fastdecode {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops, bool include_stop) {
  size_t bytes = 0;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) return absl::InvalidArgumentError(absl::StrFormat("stop: string %u is empty", i));
    if (!IsValidUtf8(stops[i])) return absl::InvalidArgumentError(absl::StrFormat("stop: string %u is not UTF-8", i));
    bytes += stops[i].size();
  }
  if (bytes > kStopBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("stop: the strings have %u bytes together, more than %u", bytes, kStopBytesMax));
  }
  return StopMatcher(std::move(stops), include_stop);
}

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  BuildNodes();
}

void StopMatcher::BuildNodes() {
  nodes_.emplace_back();
  std::vector<std::vector<std::pair<uint8_t, uint32_t>>> children(1);
  for (size_t i = 0; i < stops_.size(); ++i) {
    uint32_t node = 0;
    for (const char c : stops_[i]) {
      const auto byte = static_cast<uint8_t>(c);
      const auto [child, is_new] = children_.try_emplace(uint64_t{node} << 8 | byte, nodes_.size());
      if (is_new) {
        children[node].emplace_back(byte, child->second);
        children.emplace_back();
        nodes_.push_back({.depth = nodes_[node].depth + 1});
      }
      node = child->second;
    }
    if (nodes_[node].stop < 0) nodes_[node].stop = static_cast<int32_t>(i);
  }
  LinkSuffixes(children);
}

// Breadth first, so that shorter suffixes are linked before longer ones ask for them.
void StopMatcher::LinkSuffixes(const std::vector<std::vector<std::pair<uint8_t, uint32_t>>>& children) {
  std::vector<uint32_t> queue = {0};
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t parent = queue[i];
    for (const auto& [byte, child] : children[parent]) {
      nodes_[child].suffix = parent == 0 ? 0 : Advance(nodes_[parent].suffix, byte);
      if (nodes_[child].stop < 0) nodes_[child].stop = nodes_[nodes_[child].suffix].stop;
      queue.push_back(child);
    }
  }
}

uint32_t StopMatcher::Advance(uint32_t node, uint8_t byte) const {
  while (true) {
    const auto child = children_.find(uint64_t{node} << 8 | byte);
    if (child != children_.end()) return child->second;
    if (node == 0) return 0;
    node = nodes_[node].suffix;
  }
}

std::string StopMatcher::Feed(std::string_view piece) {
  if (match_.has_value()) return {};
  std::string text = std::move(held_);
  held_.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    node_ = Advance(node_, static_cast<uint8_t>(piece[i]));
    const int32_t stop = nodes_[node_].stop;
    if (stop < 0) continue;
    text.append(piece.substr(0, i + 1));
    const uint64_t end = seen_bytes_ + i + 1;
    const size_t stop_bytes = stops_[stop].size();
    match_ = StopMatch{.stop_index = static_cast<size_t>(stop), .begin_bytes = end - stop_bytes, .end_bytes = end};
    if (!include_stop_) text.erase(text.size() - stop_bytes);
    return text;
  }
  seen_bytes_ += piece.size();
  text.append(piece);
  const size_t held_bytes = nodes_[node_].depth;
  held_ = text.substr(text.size() - held_bytes);
  text.erase(text.size() - held_bytes);
  return text;
}

bool StopMatcher::WouldMatch(std::string_view piece) const {
  if (match_.has_value()) return false;
  uint32_t node = node_;
  for (const char byte : piece) {
    node = Advance(node, static_cast<uint8_t>(byte));
    if (nodes_[node].stop >= 0) return true;
  }
  return false;
}

std::string StopMatcher::Finish() {
  std::string text = std::move(held_);
  held_.clear();
  node_ = 0;
  return text;
}

}  // namespace fastdecode
