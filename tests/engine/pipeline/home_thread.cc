#include "tests/engine/pipeline/home_thread.h"

#include <gtest/gtest.h>

#include <utility>

#include "numa/spin.h"

namespace fastdecode {

namespace {
constexpr uint64_t kSleepNs = uint64_t{3600} * 1'000'000'000;
}  // namespace

HomeThread::HomeThread(const RPartShape& shape, uint32_t pages, std::unique_ptr<HomeLink> link)
    : shape_(shape),
      link_(std::move(link)),
      model_(shape, pages),
      waiting_(shape.micro_batches),
      buffer_(kControlMessageBytesMax),
      thread_([this] { Run(); }) {}

HomeThread::~HomeThread() { Join(); }

void HomeThread::Join() {
  if (!thread_.joinable()) return;
  link_->MarkLost("the test is over");
  thread_.join();
}

void HomeThread::Violate(const std::string& what) {
  ADD_FAILURE() << "the engine broke a rule: " << what;
  link_->MarkLost(what.c_str());
}

void HomeThread::Run() {
  PollBackoff backoff(PollMode::kYield);
  while (!link_->lost()) {
    if (Turn()) {
      backoff.Reset();
      continue;
    }
    if (!model_.idle()) {
      backoff.Idle();
      continue;
    }
    link_->Arm();
    if (Turn()) {
      link_->Disarm();
    } else {
      ++sleeps_;
      link_->Sleep(kSleepNs);
    }
  }
}

bool HomeThread::Turn() {
  HopHeader hop;
  const std::byte* rows = nullptr;
  bool moved = false;
  if (link_->PollHop(&hop, &rows) == LinkPoll::kMessage) {
    moved = true;
    TakeHop(hop, rows);
  }
  while (TakeControl()) moved = true;
  for (WaitingHop& waiting : waiting_) {
    if (!waiting.waiting || model_.Awaits(waiting.hop)) continue;
    waiting.waiting = false;
    moved = true;
    RunHop(waiting.hop, waiting.rows);
  }
  return moved;
}

void HomeThread::TakeHop(const HopHeader& hop, const std::byte* rows) {
  if (model_.Awaits(hop)) {
    waiting_[hop.micro_batch] = {true, hop, rows};
  } else {
    RunHop(hop, rows);
  }
}

void HomeThread::RunHop(const HopHeader& hop, const std::byte* rows) {
  ReplyHeader reply;
  if (std::string wrong = model_.RunHop(hop, rows, link_->ReplyArea(hop.micro_batch), &reply); !wrong.empty()) {
    return Violate(wrong);
  }
  link_->AddProgress(1);
  link_->PostReply(reply);
}

bool HomeThread::TakeControl() {
  size_t bytes = 0;
  if (link_->PollControl(buffer_.data(), &bytes) != LinkPoll::kMessage) return false;
  if (std::string wrong = model_.Apply({buffer_.data(), bytes}); !wrong.empty()) Violate(wrong);
  return true;
}

}  // namespace fastdecode
