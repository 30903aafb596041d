#ifndef FASTDECODE_ENGINE_MODEL_UNREAD_FIELDS_H_
#define FASTDECODE_ENGINE_MODEL_UNREAD_FIELDS_H_

#include "engine/model/families.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_spec.h"

namespace fastdecode {

// Notes the fields of a config.json that would change the model in another family, and that this one's code does not
// read, in transformers no more than here: a window of a Llama, a bias of a Mistral. REQUIRES: spec is read.
void NoteUnreadFields(const JsonFields& fields, const Family& family, ModelSpec* spec);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_UNREAD_FIELDS_H_
