-- SPDX-License-Identifier: Apache-2.0
-- Whether a default partition has rows.
SELECT EXISTS (SELECT FROM {{schema}}.{{partition}})
