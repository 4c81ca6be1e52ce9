/* fixture_release.h — validator of contract-9-release: two candidates, their evidence and the decisions that follow from it. */
#ifndef KV_FIXTURE_RELEASE_H
#define KV_FIXTURE_RELEASE_H

#include "runtime/evaluate/fixture.h"

kv_fixture_validator kv_fixture_release;

#endif
