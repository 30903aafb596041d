#ifndef FASTDECODE_TESTS_ENGINE_SPART_GPU_HOME_RIG_H_
#define FASTDECODE_TESTS_ENGINE_SPART_GPU_HOME_RIG_H_

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/spart/cuda/gpu_home.h"
#include "tests/engine/spart/soft_device.h"

namespace fastdecode {

inline constexpr uint32_t kMicroBatches = 2, kSequences = 10, kRowsMax = 64, kContext = 200;
inline constexpr int kIndex = 3;  // of the home in step tables

inline uint64_t gpu_home_now_ns = 1;  // the time of homes

inline RPartShape GpuHomeShape() {
  RPartShape shape;
  shape.layers = 2;
  shape.kv_heads = 2;
  shape.group = 2;
  shape.head_dim = 16;
  shape.scale = 0.25f;
  shape.micro_batches = kMicroBatches;
  shape.max_rows = kRowsMax;
  shape.max_context = kContext;
  return shape;
}

inline uint64_t PagesBytes(uint32_t pages) {
  return pages * KvPool::PageBytesAllLayers(GpuHomeShape().attention(), static_cast<int>(GpuHomeShape().layers));
}

inline absl::StatusOr<std::unique_ptr<GpuHome>> MakeHome(SoftDevice* device, uint64_t kv_bytes) {
  GpuHomeOptions options;
  options.kv_bytes = kv_bytes;
  options.sequences_max = kSequences;
  options.read_rate = 3.2e12;
  options.now_ns = [] { return gpu_home_now_ns; };
  return GpuHome::Create(options, GpuHomeShape(), device);
}

// One row or more of a sequence in a step; sequence 0: rows of another home.
struct Member {
  uint64_t sequence;
  uint32_t position, rows;
};

// A home, told what a pipeline tells it, and the page tables as the device has them. Owns: the home. Thread: one.
class GpuHomeRig {
 public:
  explicit GpuHomeRig(uint32_t pages) : home_(*MakeHome(&device_, PagesBytes(pages))), areas_(kMicroBatches) {
    Attach();
    memory_.board = &board_;
    memory_.entries = entries_;
    memory_.changes = changes_;
  }

  void Attach() {
    link_ = home_->Attach(kIndex, areas_);
    versions_[0] = versions_[1] = 0;
  }

  bool Send(ControlKind kind, uint64_t sequence, uint32_t tokens = 0) {
    const SequenceMessage message = {static_cast<uint32_t>(kind), tokens, sequence};
    return Send(message);
  }
  bool Fork(uint64_t sequence, uint32_t tokens, uint64_t new_sequence) {
    ForkMessage message;
    message.tokens = tokens;
    message.sequence = sequence;
    message.new_sequence = new_sequence;
    return Send(message);
  }
  template <class T>
  bool Send(const T& message) {
    return link_->TrySendControl(&message, sizeof(message));
  }
  // The home's next message, if it is a T.
  template <class T>
  std::optional<T> Receive() {
    std::vector<std::byte> buffer(kControlMessageBytesMax);
    size_t bytes = 0;
    if (link_->PollControl(buffer.data(), &bytes) != LinkPoll::kMessage || bytes != sizeof(T)) return std::nullopt;
    T message;
    std::memcpy(&message, buffer.data(), sizeof(message));
    return message;
  }
  // What the home says when it is told that nothing is to come: its last word.
  StatsMessage Counts() {
    EXPECT_TRUE(Send(IdleMessage()));
    StatsMessage last;
    while (const std::optional<StatsMessage> counts = Receive<StatsMessage>()) last = *counts;
    EXPECT_EQ(last.kind, static_cast<uint32_t>(ControlKind::kStats));
    return last;
  }

  bool SendRoster(uint32_t micro_batch, const std::vector<Member>& members) {
    RosterMessage header;
    header.micro_batch = micro_batch;
    header.version = ++versions_[micro_batch];
    std::vector<std::byte> message(sizeof(header));
    for (const Member& member : members) {
      if (member.sequence == 0) continue;
      const RosterEntry entry = {member.sequence, 1, member.position, member.rows};
      const auto* const bytes = reinterpret_cast<const std::byte*>(&entry);
      message.insert(message.end(), bytes, bytes + sizeof(entry));
      ++header.entries;
    }
    std::memcpy(message.data(), &header, sizeof(header));
    return link_->TrySendControl(message.data(), message.size());
  }

  // Takes a step of these members, and applies what the device would.
  uint32_t Take(int micro_batch, const std::vector<Member>& members) {
    const uint32_t taken = TakeWith(&area_, micro_batch, members);
    uint32_t here = 0;
    for (const Member& member : members) here += member.sequence == 0 ? 0 : member.rows;
    EXPECT_EQ(taken, here);
    return taken;
  }

  // The same with what the step table has as this home's send area, which is null if the link is lost.
  uint32_t TakeWith(std::byte* send, int micro_batch, const std::vector<Member>& members) {
    StepTable table;
    table.home_areas.resize(kIndex + 2);
    table.home_areas[kIndex].send = send;
    uint32_t home_row = 0;
    for (const Member& member : members) {
      for (uint32_t i = 0; i < member.rows; ++i, ++table.rows) {
        table.homes.push_back(member.sequence == 0 ? kIndex + 1 : kIndex);
        table.home_rows.push_back(member.sequence == 0 ? 77 : home_row++);
        table.positions.push_back(static_cast<int32_t>(member.position + i));
      }
    }
    rows_.assign(static_cast<size_t>(table.rows), {});
    for (size_t r = 0; r < rows_.size(); ++r) rows_[r].position = table.positions[r];
    const uint32_t taken = home_->TakeStep(micro_batch, table, memory_, rows_.data());
    for (uint32_t i = 0; i < board_.changes; ++i) tables_[{changes_[i].slot, changes_[i].index}] = changes_[i].page;
    return taken;
  }

  GpuHome& home() { return *home_; }
  EngineLink& link() { return *link_; }
  std::vector<KvEntry> entries() const { return {entries_, entries_ + board_.entries}; }
  std::vector<KvTableChange> change_list() const { return {changes_, changes_ + board_.changes}; }
  uint32_t changes() const { return board_.changes; }
  const std::vector<StepRow>& rows() const { return rows_; }
  uint32_t PageAt(uint32_t slot, uint32_t index) const { return tables_.at({slot, index}); }

 private:
  SoftDevice device_{SoftDevice::Options()};
  std::unique_ptr<GpuHome> home_;
  std::vector<std::byte*> areas_;
  std::byte area_{};
  std::unique_ptr<EngineLink> link_;
  uint32_t versions_[kMicroBatches] = {};
  KvBoard board_;
  KvEntry entries_[kSequences];
  KvTableChange changes_[kSequences * (kContext / kPageTokens + 1)];
  KvStepMemory memory_;
  std::vector<StepRow> rows_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> tables_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_SPART_GPU_HOME_RIG_H_
