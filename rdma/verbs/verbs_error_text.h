#ifndef FASTDECODE_RDMA_VERBS_VERBS_ERROR_TEXT_H_
#define FASTDECODE_RDMA_VERBS_VERBS_ERROR_TEXT_H_

#include <infiniband/verbs.h>

#include <string>

namespace fastdecode {

// "transport retry counter exceeded (status 12, vendor 0x81): the peer's host ... ": what a failed completion means and
// what to check.
std::string DescribeCompletionError(const ibv_wc& completion);

// The same for an asynchronous event that ends a link; "" for one that does not. `port`: the link's.
std::string DescribeFatalEvent(const ibv_async_event& event, int port);

// For calls that lock memory: how much this process may, and how to raise it.
std::string LockedMemoryAdvice();

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_ERROR_TEXT_H_
