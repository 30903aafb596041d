#include "rdma/verbs/verbs_calls.h"

namespace fastdecode {

const VerbsCalls& VerbsCalls::System() {
  static const VerbsCalls* const calls = new VerbsCalls{
      .get_device_list = ibv_get_device_list,
      .free_device_list = ibv_free_device_list,
      .open_device = ibv_open_device,
      .close_device = ibv_close_device,
      .query_device = ibv_query_device,
      .query_port = [](ibv_context* context, uint8_t port,
                       ibv_port_attr* attributes) { return ibv_query_port(context, port, attributes); },
      .query_gid_table = [](ibv_context* context, ibv_gid_entry* entries,
                            size_t entries_max) { return ibv_query_gid_table(context, entries, entries_max, 0); },
      .query_pkey = ibv_query_pkey,
      .alloc_pd = ibv_alloc_pd,
      .dealloc_pd = ibv_dealloc_pd,
      .reg_mr = [](ibv_pd* domain, void* data, size_t bytes,
                   unsigned access) { return ibv_reg_mr(domain, data, bytes, access); },
      .reg_dmabuf_mr =
          [](ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t address, int fd, unsigned access) {
            return ibv_reg_dmabuf_mr(domain, offset, bytes, address, fd, static_cast<int>(access));
          },
      .dereg_mr = ibv_dereg_mr,
      .create_comp_channel = ibv_create_comp_channel,
      .destroy_comp_channel = ibv_destroy_comp_channel,
      .create_cq = [](ibv_context* context, int entries,
                      ibv_comp_channel* channel) { return ibv_create_cq(context, entries, nullptr, channel, 0); },
      .destroy_cq = ibv_destroy_cq,
      .create_qp = ibv_create_qp,
      .modify_qp = ibv_modify_qp,
      .destroy_qp = ibv_destroy_qp,
      .get_cq_event =
          [](ibv_comp_channel* channel, ibv_cq** queue) {
            void* user = nullptr;
            return ibv_get_cq_event(channel, queue, &user);
          },
      .ack_cq_events = ibv_ack_cq_events,
      .get_async_event = ibv_get_async_event,
      .ack_async_event = ibv_ack_async_event,
  };
  return *calls;
}

}  // namespace fastdecode
