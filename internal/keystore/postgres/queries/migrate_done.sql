-- SPDX-License-Identifier: Apache-2.0
INSERT INTO {{schema}}.migrations (version) VALUES ($1)
