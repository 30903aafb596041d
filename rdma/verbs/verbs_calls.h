#ifndef FASTDECODE_RDMA_VERBS_VERBS_CALLS_H_
#define FASTDECODE_RDMA_VERBS_VERBS_CALLS_H_

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fastdecode {

// The calls of libibverbs that make and destroy objects or wait for events: all that the data path does not do. What it
// does (post, poll, request a notification) libibverbs inlines as a jump through the context's own table, which a
// device made up for a test fills in itself; so the data path has no seam, and no cost of one.
// Each behaves as the function of libibverbs that it is named for.
struct VerbsCalls {
  std::function<ibv_device**(int*)> get_device_list;
  std::function<void(ibv_device**)> free_device_list;
  std::function<ibv_context*(ibv_device*)> open_device;
  std::function<int(ibv_context*)> close_device;
  std::function<int(ibv_context*, ibv_device_attr*)> query_device;
  std::function<int(ibv_context*, uint8_t, ibv_port_attr*)> query_port;
  std::function<ssize_t(ibv_context*, ibv_gid_entry*, size_t)> query_gid_table;
  std::function<int(ibv_context*, uint8_t, int index, __be16*)> query_pkey;

  std::function<ibv_pd*(ibv_context*)> alloc_pd;
  std::function<int(ibv_pd*)> dealloc_pd;
  std::function<ibv_mr*(ibv_pd*, void*, size_t, unsigned)> reg_mr;
  std::function<ibv_mr*(ibv_pd*, uint64_t offset, size_t, uint64_t address, int fd, unsigned)> reg_dmabuf_mr;
  std::function<int(ibv_mr*)> dereg_mr;
  std::function<ibv_comp_channel*(ibv_context*)> create_comp_channel;
  std::function<int(ibv_comp_channel*)> destroy_comp_channel;
  std::function<ibv_cq*(ibv_context*, int, ibv_comp_channel*)> create_cq;
  std::function<int(ibv_cq*)> destroy_cq;
  std::function<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)> create_qp;
  std::function<int(ibv_qp*, ibv_qp_attr*, int)> modify_qp;
  std::function<int(ibv_qp*)> destroy_qp;

  std::function<int(ibv_comp_channel*, ibv_cq**)> get_cq_event;
  std::function<void(ibv_cq*, unsigned)> ack_cq_events;
  std::function<int(ibv_context*, ibv_async_event*)> get_async_event;
  std::function<void(ibv_async_event*)> ack_async_event;

  // Why there is no libibverbs, for people, and what to do about it; "" where there is one. Else no device is listed,
  // and only the calls for the list may be made.
  std::string missing;
  std::string missing_advice;

  // Those of the libibverbs of this name or path, which stays loaded for good: contexts and the providers behind them
  // would not survive it.
  static VerbsCalls Load(const char* library);
  // Those of this host's libibverbs, loaded by the first call: who has no links over a fabric needs none. Thread: any.
  static const VerbsCalls& System();
};

// Owns: one object of libibverbs; destroys it by the call that fits.
template <class Object>
using VerbsHandle = std::unique_ptr<Object, std::function<void(Object*)>>;

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_CALLS_H_
