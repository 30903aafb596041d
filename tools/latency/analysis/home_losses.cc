#include "tools/latency/analysis/home_losses.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

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

// A sequence that has had no token since its home was lost.
struct OpenLoss {
  size_t loss = 0, sequence = 0;  // places in the losses, and there
  uint32_t generated = 0;         // the number of its next token
  uint64_t left_ns = 0;           // since when it waits; its next FD_RECORD_JOIN starts there
  int micro_batch = -1;           // that it joined; -1: it waits
};

// Follows a recording. All answers of a request have its id: what tells them apart is when they left, their
// micro-batch, and how many tokens they have. Where a home is lost again before a sequence is where it was, the new
// loss is the one that counts.
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
        return Leave(event);
      case FD_RECORD_JOIN:
        return Join(event);
      case FD_RECORD_TOKEN:
        return Token(event);
    }
  }
  std::vector<HomeLoss> Take() { return std::move(losses_); }

 private:
  using OpenLosses = std::unordered_multimap<uint64_t, OpenLoss>;

  void Leave(const fd_record_event& leave) {
    const int micro_batch = leave.home < 0 ? -1 : leave.micro_batch;
    const auto open = FindOpen(leave.id, [&leave, micro_batch](const OpenLoss& one) {
      return one.micro_batch == micro_batch && one.generated == leave.count;
    });
    if (open != open_.end()) {
      if (leave.part == FD_LEAVE_PREEMPTED || leave.part == FD_LEAVE_MOVED) {
        open->second.left_ns = leave.end_ns;
        open->second.micro_batch = -1;
      } else {
        LostSequence& sequence = SequenceOf(open->second);
        if (sequence.joined_ns == 0) sequence.ended_ns = leave.end_ns;
        open_.erase(open);
      }
    }
    if (leave.part == FD_LEAVE_HOME_LOST) Lose(leave);
  }

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
    open_.insert(
        {leave.id,
         {.loss = index, .sequence = loss.sequences.size(), .generated = leave.count, .left_ns = leave.end_ns}});
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
    const auto open =
        FindOpen(join.id, [&join](const OpenLoss& one) { return one.micro_batch < 0 && one.left_ns == join.start_ns; });
    if (open == open_.end()) return;
    open->second.micro_batch = join.micro_batch;
    LostSequence& sequence = SequenceOf(open->second);
    if (sequence.joined_ns == 0) sequence.joined_ns = join.end_ns;
  }

  void Token(const fd_record_event& token) {
    const auto open = FindOpen(token.id, [&token](const OpenLoss& one) {
      return one.micro_batch == token.micro_batch && one.generated == token.count;
    });
    if (open == open_.end()) return;
    SequenceOf(open->second).again_ns = token.end_ns;
    open_.erase(open);
  }

  template <typename Matches>
  OpenLosses::iterator FindOpen(uint64_t id, const Matches& matches) {
    const auto [first, last] = open_.equal_range(id);
    const auto found = std::find_if(first, last, [&matches](const auto& entry) { return matches(entry.second); });
    return found == last ? open_.end() : found;
  }
  LostSequence& SequenceOf(const OpenLoss& open) { return losses_[open.loss].sequences[open.sequence]; }

  std::vector<HomeLoss> losses_;
  OpenLosses open_;  // by id
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
