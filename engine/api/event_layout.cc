// What the engine records, and the times of a request, are handed out as they are: kinds and layout are the same inside
// and in the public header.
#include <fastdecode/fastdecode.h>

#include <cstddef>

#include "engine/record/event.h"
#include "engine/request/request.h"

#define FD_SAME_PLACE(field) static_assert(offsetof(fd_record_event, field) == offsetof(fastdecode::RecordEvent, field))
static_assert(sizeof(fd_record_event) == sizeof(fastdecode::RecordEvent));
FD_SAME_PLACE(struct_size);
FD_SAME_PLACE(start_ns);
FD_SAME_PLACE(end_ns);
FD_SAME_PLACE(id);
FD_SAME_PLACE(bytes);
FD_SAME_PLACE(step);
FD_SAME_PLACE(rows);
FD_SAME_PLACE(count);
FD_SAME_PLACE(layer);
FD_SAME_PLACE(part);
FD_SAME_PLACE(home);
FD_SAME_PLACE(kind);
FD_SAME_PLACE(micro_batch);
FD_SAME_PLACE(polled_ns);
FD_SAME_PLACE(home_end_ns);
FD_SAME_PLACE(idle_ns);
FD_SAME_PLACE(prepare_ns);
FD_SAME_PLACE(append_ns);
FD_SAME_PLACE(attend_ns);
FD_SAME_PLACE(merge_ns);
FD_SAME_PLACE(wait_ns);
FD_SAME_PLACE(post_ns);
#undef FD_SAME_PLACE
#define FD_SAME_PLACE(field) static_assert(offsetof(fd_step_times, field) == offsetof(fastdecode::StepTimes, field))
static_assert(sizeof(fd_step_times) == sizeof(fastdecode::StepTimes));
FD_SAME_PLACE(steps);
FD_SAME_PLACE(total_ns);
FD_SAME_PLACE(s_ns);
FD_SAME_PLACE(wait_ns);
FD_SAME_PLACE(home_ns);
FD_SAME_PLACE(wire_ns);
FD_SAME_PLACE(boundary_ns);
FD_SAME_PLACE(sampling_ns);
#undef FD_SAME_PLACE
#define FD_SAME_PLACE(field) \
  static_assert(offsetof(fd_request_times, field) == offsetof(fastdecode::RequestTimes, field))
static_assert(sizeof(fd_request_times) == sizeof(fastdecode::RequestTimes));
FD_SAME_PLACE(struct_size);
FD_SAME_PLACE(preemptions);
FD_SAME_PLACE(queue_ns);
FD_SAME_PLACE(prefill);
FD_SAME_PLACE(decode);
FD_SAME_PLACE(recovery_ns);
FD_SAME_PLACE(recoveries);
FD_SAME_PLACE(reserved);
#undef FD_SAME_PLACE
static_assert(int{FD_RECORD_COMPOSE} == int{fastdecode::kRecordCompose});
static_assert(int{FD_RECORD_ROSTERS} == int{fastdecode::kRecordRosters});
static_assert(int{FD_RECORD_SHARE} == int{fastdecode::kRecordShare});
static_assert(int{FD_RECORD_STAGE} == int{fastdecode::kRecordStage});
static_assert(int{FD_RECORD_STAGE_PART} == int{fastdecode::kRecordStagePart});
static_assert(int{FD_RECORD_POST} == int{fastdecode::kRecordPost});
static_assert(int{FD_RECORD_HOP} == int{fastdecode::kRecordHop});
static_assert(int{FD_RECORD_FINISH} == int{fastdecode::kRecordFinish});
static_assert(int{FD_RECORD_HELD} == int{fastdecode::kRecordHeld});
static_assert(int{FD_RECORD_IDLE} == int{fastdecode::kRecordIdle});
static_assert(int{FD_RECORD_JOIN} == int{fastdecode::kRecordJoin});
static_assert(int{FD_RECORD_TOKEN} == int{fastdecode::kRecordToken});
static_assert(int{FD_RECORD_LEAVE} == int{fastdecode::kRecordLeave});
static_assert(int{FD_RECORD_DELIVER} == int{fastdecode::kRecordDeliver});
static_assert(int{FD_RECORD_SUBMIT} == int{fastdecode::kRecordSubmit});
static_assert(int{FD_STAGE_QKV} == int{fastdecode::kStageQkv});
static_assert(int{FD_STAGE_O} == int{fastdecode::kStageO});
static_assert(int{FD_STAGE_GATE_UP} == int{fastdecode::kStageGateUp});
static_assert(int{FD_STAGE_DOWN} == int{fastdecode::kStageDown});
static_assert(int{FD_STAGE_LOGITS} == int{fastdecode::kStageLogits});
static_assert(int{FD_STAGE_SIGNAL} == int{fastdecode::kStageSignal});
static_assert(int{FD_STAGE_REST} == int{fastdecode::kStageRest});
static_assert(int{FD_STAGE_ATTEND} == int{fastdecode::kStageAttend});
static_assert(int{FD_LEAVE_FINISHED} == int{fastdecode::kLeaveFinished});
static_assert(int{FD_LEAVE_CANCELLED} == int{fastdecode::kLeaveCancelled});
static_assert(int{FD_LEAVE_FAILED} == int{fastdecode::kLeaveFailed});
static_assert(int{FD_LEAVE_PREEMPTED} == int{fastdecode::kLeavePreempted});
static_assert(int{FD_LEAVE_STOPPED} == int{fastdecode::kLeaveStopped});
static_assert(int{FD_LEAVE_MOVED} == int{fastdecode::kLeaveMoved});
static_assert(int{FD_LEAVE_HOME_LOST} == int{fastdecode::kLeaveHomeLost});
