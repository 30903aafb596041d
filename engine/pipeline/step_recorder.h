#ifndef FASTDECODE_ENGINE_PIPELINE_STEP_RECORDER_H_
#define FASTDECODE_ENGINE_PIPELINE_STEP_RECORDER_H_

#include <cstdint>

#include "engine/pipeline/sequence.h"
#include "engine/record/event_ring.h"
#include "engine/spart/spart.h"
#include "rdma/wire.h"

namespace fastdecode {

// Says in fd_record_events what the pipeline does, while somebody reads. All times are those that the pipeline took
// anyway. Thread: the pipeline's.
class StepRecorder {
 public:
  explicit StepRecorder(const EventWriter& writer) : writer_(writer) {}

  bool on() const { return writer_.on(); }

  struct Where {
    int micro_batch = 0;
    uint64_t step = 0;
  };

  void Compose(Where where, uint64_t start_ns, uint64_t end_ns, uint32_t rows, size_t sequences) {
    RecordEvent event = Event(kRecordCompose, where, start_ns, end_ns);
    event.rows = rows;
    event.count = static_cast<uint32_t>(sequences);
    writer_.Write(event);
  }
  void Rosters(Where where, uint64_t start_ns, uint64_t end_ns) {
    writer_.Write(Event(kRecordRosters, where, start_ns, end_ns));
  }
  void Share(Where where, uint64_t now_ns, int home, uint32_t rows, uint64_t tokens, uint64_t kv_bytes) {
    RecordEvent event = Event(kRecordShare, where, now_ns, now_ns);
    event.home = static_cast<int16_t>(home);
    event.rows = rows;
    event.count = static_cast<uint32_t>(tokens);
    event.bytes = kv_bytes;
    writer_.Write(event);
  }
  void Stage(Where where, int stage, uint64_t start_ns, uint64_t end_ns, int rows, const StageTrace& trace) {
    for (int i = 0; i < trace.count; ++i) {
      const StageTrace::Part& part = trace.parts[i];
      RecordEvent event = Event(kRecordStagePart, where, part.start_ns, part.end_ns);
      event.part = static_cast<uint16_t>(part.what);
      event.layer = static_cast<uint16_t>(part.layer);
      writer_.Write(event);
    }
    RecordEvent event = Event(kRecordStage, where, start_ns, end_ns);
    event.layer = static_cast<uint16_t>(stage);
    event.rows = static_cast<uint32_t>(rows);
    writer_.Write(event);
  }
  void Post(Where where, int layer, uint64_t start_ns, uint64_t end_ns, int homes) {
    RecordEvent event = Event(kRecordPost, where, start_ns, end_ns);
    event.layer = static_cast<uint16_t>(layer);
    event.count = static_cast<uint32_t>(homes);
    writer_.Write(event);
  }
  // `polled_ns`: when the pipeline last looked for replies of the home in vain.
  void Hop(const ReplyHeader& reply, int home, uint64_t posted_ns, uint64_t seen_ns, uint64_t polled_ns, uint32_t rows,
           uint64_t bytes) {
    RecordEvent event = Event(kRecordHop, {reply.micro_batch, reply.step}, posted_ns, seen_ns);
    event.layer = reply.layer;
    event.home = static_cast<int16_t>(home);
    event.rows = rows;
    event.bytes = bytes;
    event.polled_ns = polled_ns > posted_ns ? polled_ns : 0;
    // The one nearest to the end: the difference, as a signed number of 32 bits.
    event.home_end_ns =
        seen_ns +
        static_cast<uint64_t>(int64_t{static_cast<int32_t>(reply.end_clock_ns - static_cast<uint32_t>(seen_ns))});
    const uint64_t parts_ns = reply.prepare.ToNs() + reply.append.ToNs() + reply.merge.ToNs() + reply.wait.ToNs();
    event.idle_ns = ToWord(reply.idle);
    event.prepare_ns = ToWord(reply.prepare);
    event.append_ns = ToWord(reply.append);
    event.attend_ns = reply.work_ns > parts_ns ? static_cast<uint32_t>(reply.work_ns - parts_ns) : 0;
    event.merge_ns = ToWord(reply.merge);
    event.wait_ns = ToWord(reply.wait);
    event.post_ns = ToWord(reply.post);
    writer_.Write(event);
  }
  void Finish(Where where, uint64_t start_ns, uint64_t end_ns, uint32_t tokens) {
    RecordEvent event = Event(kRecordFinish, where, start_ns, end_ns);
    event.count = tokens;
    writer_.Write(event);
  }
  void Held(Where where, uint64_t start_ns, uint64_t end_ns) {
    writer_.Write(Event(kRecordHeld, where, start_ns, end_ns));
  }
  void Idle(uint64_t start_ns, uint64_t end_ns, bool parked) {
    RecordEvent event = Event(kRecordIdle, {}, start_ns, end_ns);
    event.part = parked ? 1 : 0;
    writer_.Write(event);
  }
  void Join(Where where, const Sequence& sequence, uint64_t now_ns) {
    const bool again = sequence.preempted_ns != 0;
    RecordEvent event = Event(kRecordJoin, where, again ? sequence.preempted_ns : sequence.submit_ns, now_ns);
    event.id = sequence.request;
    event.part = again ? 1 : 0;
    event.home = static_cast<int16_t>(sequence.seat.home);
    event.rows = sequence.prompt_tokens;
    writer_.Write(event);
  }
  // `index`: of the generated tokens.
  void Token(Where where, const Sequence& sequence, uint32_t index, uint64_t now_ns) {
    RecordEvent event = Event(kRecordToken, where, now_ns, now_ns);
    event.id = sequence.request;
    event.count = index;
    writer_.Write(event);
  }
  // `home`: where it was; -1: it waited.
  void Leave(Where where, const Sequence& sequence, int home, LeaveKind how, uint64_t now_ns) {
    writer_.Write(LeaveEvent(where, sequence, home, how, now_ns));
  }
  // Its home was lost at lost_ns, and it leaves now.
  void LeaveLost(Where where, const Sequence& sequence, int home, uint64_t lost_ns, uint64_t now_ns) {
    RecordEvent event = LeaveEvent(where, sequence, home, kLeaveHomeLost, now_ns);
    event.start_ns = lost_ns;
    writer_.Write(event);
  }
  // At a boundary of `from`; its next row is in step `to`, or in a later one.
  void Move(Where from, Where to, const Sequence& sequence, uint64_t now_ns) {
    Leave(from, sequence, sequence.seat.home, kLeaveMoved, now_ns);
    RecordEvent event = Event(kRecordJoin, to, now_ns, now_ns);
    event.id = sequence.request;
    event.part = 2;
    event.home = static_cast<int16_t>(sequence.seat.home);
    event.rows = sequence.prompt_tokens;
    writer_.Write(event);
  }

 private:
  static RecordEvent Event(RecordKind kind, Where where, uint64_t start_ns, uint64_t end_ns) {
    RecordEvent event = {};
    event.start_ns = start_ns;
    event.end_ns = end_ns;
    event.step = static_cast<uint32_t>(where.step);
    event.home = -1;
    event.kind = kind;
    event.micro_batch = static_cast<uint8_t>(where.micro_batch);
    return event;
  }
  static RecordEvent LeaveEvent(Where where, const Sequence& sequence, int home, LeaveKind how, uint64_t now_ns) {
    RecordEvent event = Event(kRecordLeave, where, now_ns, now_ns);
    event.id = sequence.request;
    event.part = static_cast<uint16_t>(how);
    event.home = static_cast<int16_t>(home);
    event.count = sequence.length - sequence.prompt_tokens;
    return event;
  }
  static uint32_t ToWord(ShortDuration duration) {
    const uint64_t ns = duration.ToNs();
    return ns < UINT32_MAX ? static_cast<uint32_t>(ns) : UINT32_MAX;
  }

  EventWriter writer_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_STEP_RECORDER_H_
