-- SPDX-License-Identifier: Apache-2.0
-- From here on every write to the partition makes its record void. Lock: SHARE ROW EXCLUSIVE on the partition, which waits for transactions that
-- have written to it and for nothing else; reads go on.
CREATE OR REPLACE TRIGGER sealed BEFORE INSERT OR UPDATE ON {{schema}}.{{partition}}
FOR EACH ROW EXECUTE FUNCTION {{schema}}.unseal()
