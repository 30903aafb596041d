#ifndef FASTDECODE_ENGINE_RECORD_EVENT_H_
#define FASTDECODE_ENGINE_RECORD_EVENT_H_

#include <cstdint>

namespace fastdecode {

// What the engine's threads record. The public header (fd_record_event and the enums beside it) says what each kind and
// field means; values and layout are the same, which api/event_layout.cc checks.

enum RecordKind : uint8_t {
  kRecordCompose = 1,
  kRecordRosters = 2,
  kRecordShare = 3,
  kRecordStage = 4,
  kRecordStagePart = 5,
  kRecordPost = 6,
  kRecordHop = 7,
  kRecordFinish = 8,
  kRecordHeld = 9,
  kRecordIdle = 10,
  kRecordJoin = 11,
  kRecordToken = 12,
  kRecordLeave = 13,
  kRecordDeliver = 14,
  kRecordSubmit = 15,
};

// Parts of a stage, of which the GEMMs are recorded one by one.
enum StagePart : uint16_t {
  kStageQkv = 1,
  kStageO = 2,
  kStageGateUp = 3,
  kStageDown = 4,
  kStageLogits = 5,
  kStageSignal = 6,
  kStageRest = 7,
  kStageAttend = 8,
};

// Why a sequence left its micro-batch.
enum LeaveKind : uint16_t {
  kLeaveFinished = 1,
  kLeaveCancelled = 2,
  kLeaveFailed = 3,
  kLeavePreempted = 4,
  kLeaveStopped = 5,
  kLeaveMoved = 6,
  kLeaveHomeLost = 7,
};

// A plain struct: its words are copied one by one into rings that other processes map.
struct RecordEvent {
  uint32_t struct_size = 0;  // for those to whom the event is handed out
  uint32_t step = 0;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint32_t rows = 0;
  uint32_t count = 0;
  uint16_t layer = 0;
  uint16_t part = 0;
  int16_t home = 0;
  RecordKind kind{};
  uint8_t micro_batch = 0;
  uint64_t polled_ns = 0;
  uint64_t home_end_ns = 0;
  uint32_t idle_ns = 0;
  uint32_t prepare_ns = 0;
  uint32_t append_ns = 0;
  uint32_t attend_ns = 0;
  uint32_t merge_ns = 0;
  uint32_t wait_ns = 0;
  uint32_t post_ns = 0;
  uint32_t reserved = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RECORD_EVENT_H_
