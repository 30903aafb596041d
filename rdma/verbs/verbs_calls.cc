#include "rdma/verbs/verbs_calls.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fastdecode {

namespace {

// Finds functions in libibverbs, in the version that a program linked against today's would get, and remembers the
// first that is not there.
class VerbsFunctions {
 public:
  explicit VerbsFunctions(void* library) : library_(library) {}

  template <class Function>
  Function* Find(const char* name, const char* version) {
    void* const address = dlvsym(library_, name, version);
    if (address == nullptr && missing_.empty()) missing_ = absl::StrCat(name, "@", version);
    return reinterpret_cast<Function*>(address);
  }
  // "": none.
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

VerbsCalls NoneBecause(std::string why, std::string advice) {
  VerbsCalls none;
  none.get_device_list = [](int* count) -> ibv_device** {
    *count = 0;
    return nullptr;
  };
  none.free_device_list = [](ibv_device**) {};
  none.missing = std::move(why);
  none.missing_advice = std::move(advice);
  return none;
}

// The header's own, which are inlined, call functions by their names, and so cannot be used.
int QueryPort(decltype(ibv_query_port)* of_old_devices, ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  if (verbs_context* const extended = verbs_get_ctx_op(context, query_port)) {
    return extended->query_port(context, port, attributes, sizeof(*attributes));
  }
  std::memset(attributes, 0, sizeof(*attributes));
  return of_old_devices(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
}

}  // namespace

// A function's type comes from the header, and a name that is none of its functions does not compile. Some functions
// have a macro of their name beside them, which a name without arguments is not taken for.
#define FASTDECODE_FIND(function, version) functions.Find<decltype(function)>(#function, version)

VerbsCalls VerbsCalls::Load(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return NoneBecause(absl::StrCat(library, " could not be loaded: ", why),
                       "install libibverbs1 and ibverbs-providers");
  }
  constexpr char kFirst[] = "IBVERBS_1.0", kCommon[] = "IBVERBS_1.1";
  VerbsFunctions functions(handle);
  auto* const query_port = FASTDECODE_FIND(ibv_query_port, kCommon);
  auto* const query_gid_table = FASTDECODE_FIND(_ibv_query_gid_table, "IBVERBS_1.11");
  auto* const reg_mr = FASTDECODE_FIND(ibv_reg_mr_iova2, "IBVERBS_1.8");
  auto* const reg_dmabuf_mr = FASTDECODE_FIND(ibv_reg_dmabuf_mr, "IBVERBS_1.12");
  auto* const create_cq = FASTDECODE_FIND(ibv_create_cq, kCommon);
  auto* const get_cq_event = FASTDECODE_FIND(ibv_get_cq_event, kCommon);
  VerbsCalls calls = {
      .get_device_list = FASTDECODE_FIND(ibv_get_device_list, kCommon),
      .free_device_list = FASTDECODE_FIND(ibv_free_device_list, kCommon),
      .open_device = FASTDECODE_FIND(ibv_open_device, kCommon),
      .close_device = FASTDECODE_FIND(ibv_close_device, kCommon),
      .query_device = FASTDECODE_FIND(ibv_query_device, kCommon),
      .query_port = [query_port](
                        ibv_context* context, uint8_t port,
                        ibv_port_attr* attributes) { return QueryPort(query_port, context, port, attributes); },
      .query_gid_table =
          [query_gid_table](ibv_context* context, ibv_gid_entry* entries, size_t entries_max) {
            return query_gid_table(context, entries, entries_max, 0, sizeof(*entries));
          },
      .query_pkey = FASTDECODE_FIND(ibv_query_pkey, kCommon),
      .alloc_pd = FASTDECODE_FIND(ibv_alloc_pd, kCommon),
      .dealloc_pd = FASTDECODE_FIND(ibv_dealloc_pd, kCommon),
      .reg_mr = [reg_mr](
                    ibv_pd* domain, void* data, size_t bytes,
                    unsigned access) { return reg_mr(domain, data, bytes, reinterpret_cast<uintptr_t>(data), access); },
      .reg_dmabuf_mr =
          [reg_dmabuf_mr](ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t address, int fd, unsigned access) {
            return reg_dmabuf_mr(domain, offset, bytes, address, fd, static_cast<int>(access));
          },
      .dereg_mr = FASTDECODE_FIND(ibv_dereg_mr, kCommon),
      .create_comp_channel = FASTDECODE_FIND(ibv_create_comp_channel, kFirst),
      .destroy_comp_channel = FASTDECODE_FIND(ibv_destroy_comp_channel, kFirst),
      .create_cq = [create_cq](ibv_context* context, int entries,
                               ibv_comp_channel* channel) { return create_cq(context, entries, nullptr, channel, 0); },
      .destroy_cq = FASTDECODE_FIND(ibv_destroy_cq, kCommon),
      .create_qp = FASTDECODE_FIND(ibv_create_qp, kCommon),
      .modify_qp = FASTDECODE_FIND(ibv_modify_qp, kCommon),
      .destroy_qp = FASTDECODE_FIND(ibv_destroy_qp, kCommon),
      .get_cq_event =
          [get_cq_event](ibv_comp_channel* channel, ibv_cq** queue) {
            void* user = nullptr;
            return get_cq_event(channel, queue, &user);
          },
      .ack_cq_events = FASTDECODE_FIND(ibv_ack_cq_events, kCommon),
      .get_async_event = FASTDECODE_FIND(ibv_get_async_event, kCommon),
      .ack_async_event = FASTDECODE_FIND(ibv_ack_async_event, kCommon),
      .missing = "",
      .missing_advice = "",
  };
  if (functions.missing().empty()) return calls;
  return NoneBecause(absl::StrCat(library, " has no ", functions.missing(), ": it is older than rdma-core 34"),
                     "install a newer libibverbs1");
}

#undef FASTDECODE_FIND

const VerbsCalls& VerbsCalls::System() {
  static const VerbsCalls* const calls = new VerbsCalls(Load("libibverbs.so.1"));
  return *calls;
}

}  // namespace fastdecode
