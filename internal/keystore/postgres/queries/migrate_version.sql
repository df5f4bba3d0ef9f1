-- SPDX-License-Identifier: Apache-2.0
SELECT coalesce(max(version), 0) FROM {{schema}}.migrations
