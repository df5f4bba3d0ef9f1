-- SPDX-License-Identifier: Apache-2.0
DELETE FROM {{schema}}.partitions WHERE relation = $1 AND phase = 'retiring'
