#ifndef FASTDECODE_TOOLS_DOCTOR_TRAFFIC_H_
#define FASTDECODE_TOOLS_DOCTOR_TRAFFIC_H_

#include <string>

#include "tools/doctor/doctor.h"
#include "tools/doctor/rdma.h"

namespace fastdecode {

// How the port's traffic is kept from being lost (ECN, PFC), and what its counters say of trouble. `interface`: whose
// packets carry it, "" if not known.
void ExamineTraffic(const SysRoot& root, const RdmaDevice& device, const RdmaPort& port, const std::string& interface,
                    CheckList* list);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_DOCTOR_TRAFFIC_H_
