#include "tests/thread_limit.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

namespace {

constexpr int kAsManyAsLike = std::numeric_limits<int>::max();

std::atomic<int> g_left{kAsManyAsLike};  // negative: as many were refused

bool TakeOne() {
  if (g_left.load() == kAsManyAsLike) return true;
  return g_left.fetch_sub(1) > 0;
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* args) {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return TakeOne() ? create(thread, attributes, body, args) : EAGAIN;
}

namespace fastdecode {

ThreadLimit::ThreadLimit(int more) { g_left.store(more); }
ThreadLimit::~ThreadLimit() { g_left.store(kAsManyAsLike); }
bool ThreadLimit::reached() const { return g_left.load() < 0; }

}  // namespace fastdecode
