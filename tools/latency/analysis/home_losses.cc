#include "tools/latency/analysis/home_losses.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tools/latency/analysis/request_tracks.h"

namespace fastdecode {
namespace {

constexpr size_t kMicroBatchesMax = 256;

// What is open of a micro-batch's step.
struct OpenStep {
  uint32_t step = 0;
  uint32_t sequences = 0;
  std::vector<fd_record_event> posts;  // by layer
  std::map<int, int> last_layer;       // [home] of which a reply was seen

  void See(const fd_record_event& event) {
    if (event.step != step) *this = {.step = event.step, .posts = {}, .last_layer = {}};
    if (event.kind == FD_RECORD_COMPOSE) sequences = event.count;
    if (event.kind == FD_RECORD_SHARE) last_layer.emplace(event.home, -1);
    if (event.kind == FD_RECORD_POST) posts.push_back(event);
    if (event.kind == FD_RECORD_HOP) last_layer[event.home] = event.layer;
  }
  // Since when the micro-batch has waited for the home at that moment. Nothing: no hop of it was open.
  std::optional<uint64_t> WaitsSince(int home, uint64_t at_ns) const {
    const auto answered = last_layer.find(home);
    if (answered == last_layer.end()) return std::nullopt;
    const fd_record_event* open = nullptr;
    for (const fd_record_event& post : posts) {
      if (post.start_ns <= at_ns) open = &post;
    }
    if (open == nullptr || answered->second >= open->layer) return std::nullopt;
    return open->start_ns;
  }
};

// Follows a recording. Where a home is lost again before a sequence is where it was, the new loss is the one that
// counts.
class LossFinder {
 public:
  void See(const fd_record_event& event) {
    switch (event.kind) {
      case FD_RECORD_COMPOSE:
      case FD_RECORD_SHARE:
      case FD_RECORD_POST:
      case FD_RECORD_HOP:
        return steps_[event.micro_batch].See(event);
      case FD_RECORD_LEAVE:
        if (event.part == FD_LEAVE_HOME_LOST) return Lose(event);
        if (!GoesOn(event.part)) End(event);
        return;
      case FD_RECORD_JOIN:
        return Join(event);
      case FD_RECORD_TOKEN:
        return Token(event);
    }
  }
  std::vector<HomeLoss> Take() { return std::move(losses_); }

 private:
  void Lose(const fd_record_event& leave) {
    const size_t index = LossOf(leave);
    HomeLoss& loss = losses_[index];
    LostSequence sequence = {.id = leave.id, .left_ns = leave.end_ns, .answers = leave.count > 0};
    const OpenStep& step = steps_[leave.micro_batch];
    if (const auto since_ns = step.WaitsSince(leave.home, loss.lost_ns)) {
      sequence.waited_ns = loss.lost_ns - *since_ns;
      const auto same = [&leave](const Span& wait) { return wait.micro_batch == leave.micro_batch; };
      if (std::none_of(loss.waits.begin(), loss.waits.end(), same)) {
        loss.waits.push_back({*since_ns, loss.lost_ns, leave.micro_batch});
        loss.waited_by_all_ns += static_cast<double>(sequence.waited_ns) * step.sequences;
      }
    }
    lost_.insert({leave.id, {index, loss.sequences.size()}});
    loss.sequences.push_back(sequence);
  }

  size_t LossOf(const fd_record_event& leave) {
    for (size_t i = losses_.size(); i-- > 0;) {
      if (losses_[i].home == leave.home && losses_[i].lost_ns == leave.start_ns) return i;
    }
    losses_.push_back({.home = leave.home, .lost_ns = leave.start_ns, .sequences = {}, .waits = {}});
    return losses_.size() - 1;
  }

  void Join(const fd_record_event& join) {
    for (HomeLoss& loss : losses_) {
      if (loss.home == join.home && loss.back_ns == 0) loss.back_ns = join.end_ns;
    }
    for (auto [it, end] = lost_.equal_range(join.id); it != end; ++it) {
      LostSequence& sequence = SequenceOf(it->second);
      if (sequence.joined_ns != 0) continue;
      sequence.joined_ns = join.end_ns;
      return;
    }
  }

  // A token of an answer that has no home is another answer's.
  void Token(const fd_record_event& token) {
    for (auto [it, end] = lost_.equal_range(token.id); it != end; ++it) {
      LostSequence& sequence = SequenceOf(it->second);
      if (sequence.joined_ns == 0) continue;
      sequence.again_ns = token.end_ns;
      lost_.erase(it);
      return;
    }
  }

  void End(const fd_record_event& leave) {
    for (auto [it, end] = lost_.equal_range(leave.id); it != end; ++it) SequenceOf(it->second).ended_ns = leave.end_ns;
    lost_.erase(leave.id);
  }

  LostSequence& SequenceOf(const std::pair<size_t, size_t>& place) {
    return losses_[place.first].sequences[place.second];
  }

  std::vector<HomeLoss> losses_;
  // By id, those without a token since: loss, sequence. All answers of a request have its id.
  std::unordered_multimap<uint64_t, std::pair<size_t, size_t>> lost_;
  std::array<OpenStep, kMicroBatchesMax> steps_;
};

}  // namespace

std::vector<HomeLoss> FindHomeLosses(const Recording& recording) {
  const auto is_loss = [](const fd_record_event& event) {
    return event.kind == FD_RECORD_LEAVE && event.part == FD_LEAVE_HOME_LOST;
  };
  if (std::none_of(recording.events.begin(), recording.events.end(), is_loss)) return {};
  LossFinder finder;
  for (const fd_record_event& event : recording.events) finder.See(event);
  std::vector<HomeLoss> losses = finder.Take();
  std::stable_sort(losses.begin(), losses.end(),
                   [](const HomeLoss& a, const HomeLoss& b) { return a.lost_ns < b.lost_ns; });
  return losses;
}

bool SomeHomeIsAway(const std::vector<HomeLoss>& losses, uint64_t at_ns) {
  return std::any_of(losses.begin(), losses.end(), [at_ns](const HomeLoss& loss) {
    return loss.lost_ns <= at_ns && (loss.back_ns == 0 || at_ns < loss.back_ns);
  });
}

std::vector<Span> SpansWithoutHome(const std::vector<HomeLoss>& losses, uint64_t end_ns) {
  std::vector<Span> spans;
  for (const HomeLoss& loss : losses) {
    for (const LostSequence& sequence : loss.sequences) {
      const uint64_t ended_ns = sequence.ended_ns > 0 ? sequence.ended_ns : end_ns;
      spans.push_back({sequence.left_ns, sequence.joined_ns > 0 ? sequence.joined_ns : ended_ns});
    }
  }
  return spans;
}

}  // namespace fastdecode
